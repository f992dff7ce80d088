from __future__ import annotations

import numpy as np
import pytest

from noisette.data import DataError, DataSet, Split


def split(*targets: int, width: int = 2) -> Split:
    return Split(np.zeros((3, width), np.float32), np.array(targets, np.int64))


def test_everything_that_does_not_fit_is_listed() -> None:
    with pytest.raises(DataError) as caught:
        DataSet(name="toy", train=split(0, -1, 7), test=split(0, 0, width=3), classes=7, declared_size=3, note="")
    message = str(caught.value)
    assert "3 problems" in message
    assert "train has 2 labels outside 0..6, the first at index 1" in message
    assert "test has 3 inputs but 2 labels" in message
    assert "shape (2,), those of test (3,)" in message


def test_the_declared_size_is_not_the_length() -> None:
    found = DataSet(name="toy", train=split(0, 1, 0), test=None, classes=2, declared_size=1000, note="")
    assert found.declared_size == 1000


def texts(*numbers: int, kind: type = np.int64) -> Split:
    return Split(np.array([numbers] * 2, kind), np.array([0, 1], np.int64))


def test_words_must_have_vectors() -> None:
    vectors = np.zeros((5, 2), np.float32)
    sound = DataSet("toy", train=texts(0, 4), test=None, classes=2, declared_size=2, note="", vectors=vectors)
    assert sound.vectors is vectors
    with pytest.raises(DataError) as caught:
        DataSet("toy", train=texts(0, 5), test=texts(-1, 0), classes=2, declared_size=2, note="", vectors=vectors)
    assert "train has 2 texts with words outside 0..4, the first at index 0" in str(caught.value)
    assert "test has 2 texts with words outside 0..4" in str(caught.value)
    with pytest.raises(DataError, match=r"train has inputs of type float32 of shape \(2, 2\)"):
        DataSet("toy", texts(0, 1, kind=np.float32), None, classes=2, declared_size=2, note="", vectors=vectors)
