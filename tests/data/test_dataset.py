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
