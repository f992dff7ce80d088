from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from noisette.data import load


def test_every_record_is_in_one_split_with_its_label() -> None:
    found = load("digits")
    assert found.test is not None
    assert (found.classes, found.declared_size, found.note) == (10, 1437, "")
    assert found.train.inputs.shape == (1437, 1, 8, 8)
    assert found.test.inputs.shape == (360, 1, 8, 8)
    ours = np.concatenate([found.train.inputs, found.test.inputs]).reshape(1797, 64) * 16
    labels = np.concatenate([found.train.targets, found.test.targets])
    expected = load_digits()
    rows = sorted(map(tuple, np.column_stack([expected.data, expected.target])))
    assert sorted(map(tuple, np.column_stack([ours, labels]))) == rows


def test_the_split_is_the_same_every_time() -> None:
    first, second = load("digits"), load("digits")
    np.testing.assert_array_equal(first.train.inputs, second.train.inputs)
    assert first.test is not None
    assert first.test.targets[:8].tolist() == [2, 8, 2, 6, 6, 7, 1, 9]  # frozen: results are compared across versions
    assert np.bincount(first.test.targets).min() >= 25
