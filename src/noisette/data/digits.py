"""Digits: 1,797 grey images of 8 x 8 pixels, installed with scikit-learn; nothing is downloaded."""

from __future__ import annotations

import numpy as np

from noisette.data.dataset import DataSet, Split

_TEST = 360
_HIGHEST = np.float32(16)  # value of a pixel


def read() -> DataSet:
    """Digits, inputs (n, 1, 8, 8) in [0, 1]; 1,437 examples for training and 360 for testing.

    The records are ordered by writer, so the split is a fixed shuffle, the same on every machine.
    """
    from sklearn.datasets import load_digits  # here, because importing it takes longer than reading MNIST

    images, digits = (np.asarray(array) for array in load_digits(return_X_y=True))
    inputs = images.astype(np.float32).reshape(-1, 1, 8, 8) / _HIGHEST
    targets = digits.astype(np.int64)
    order = np.random.RandomState(0).permutation(len(targets))  # the same in every version of NumPy
    test, train = (Split(inputs[rows], targets[rows]) for rows in (order[:_TEST], order[_TEST:]))
    return DataSet(name="digits", train=train, test=test, classes=10, declared_size=1437)
