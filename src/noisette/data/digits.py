"""Digits: 1,797 grey images of 8 x 8 that come with scikit-learn, so that nothing is downloaded."""

from __future__ import annotations

import numpy as np

from noisette.data.dataset import DataSet, Split

_TEST = 360
_HIGHEST = np.float32(16)  # of a pixel


def read() -> DataSet:
    """Digits, inputs (n, 1, 8, 8) in [0, 1]; 1,437 examples to train on and 360 to test with.

    The records come writer by writer, so the split is a fixed shuffle, the same on every machine.
    """
    from sklearn.datasets import load_digits  # here, because importing it takes longer than reading MNIST

    images, digits = (np.asarray(array) for array in load_digits(return_X_y=True))
    inputs = images.astype(np.float32).reshape(-1, 1, 8, 8) / _HIGHEST
    targets = digits.astype(np.int64)
    shuffled = np.random.RandomState(0).permutation(len(targets))  # this generator's numbers never change
    test, train = shuffled[:_TEST], shuffled[_TEST:]
    return DataSet(
        name="digits",
        train=Split(inputs[train], targets[train]),
        test=Split(inputs[test], targets[test]),
        classes=10,
        declared_size=1437,
        note="",
    )
