"""Holds out a random part of the records, to test with."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from noisette.data.dataset import DataSet, Split
from noisette.data.errors import DataError

_BYTES = 8


def hold_out(data: DataSet, share: float, key: bytes) -> DataSet:
    """The data set with each of its records held out with probability ``share``; the rest is left for training.

    Whether a record is held out is decided by a keyed hash of its place in the file, or of its user where users are
    known, so that all records of a user are on one side. It depends neither on what the record says nor on others.

    Args:
        data: a data set without test examples.
        share: above 0 and below 1.
        key: secret, drawn anew for each run; the same key gives the same split.

    Guarantee: with a secret key drawn at random, adding or removing one record changes the training part by this record
    or not at all, so a guarantee for the training part is one for the training that :func:`noisette.data.load` read.
    There is none for what is published about the part held out: without noise it reveals its records.

    Raises:
        DataError: the share is outside its domain, there are test examples already, or one of the two parts is empty.
    """
    if not 0 < share < 1:
        raise DataError(f"expected 0 < holdout < 1, got holdout={share}")
    if data.test is not None:
        raise DataError(f"{data.name} has test examples already; leave holdout out, or the test examples")
    units = range(len(data.train.inputs)) if data.train.users is None else data.train.users
    held = np.array([_fraction(str(unit), key) < share for unit in units], dtype=bool)
    if held.all() or not held.any():
        raise DataError(
            f"{data.name} has too few records to hold out a share of {share:g}: one part is empty; change holdout"
        )
    return replace(
        data,
        train=_part(data.train, ~held),
        test=_part(data.train, held),
        declared_size=max(1, round(data.declared_size * (1 - share))),
    )


def _fraction(unit: str, key: bytes) -> float:
    """A number in [0, 1), uniform for a random key."""
    digest = hashlib.blake2b(unit.encode("utf-8", "surrogatepass"), key=key, digest_size=_BYTES).digest()
    return int.from_bytes(digest) / 2 ** (8 * _BYTES)


def _part(split: Split, chosen: np.ndarray) -> Split:
    users = None if split.users is None else [split.users[index] for index in np.flatnonzero(chosen).tolist()]
    return Split(split.inputs[chosen], split.targets[chosen], users)
