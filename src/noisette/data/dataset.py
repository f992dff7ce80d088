"""What every reader hands on: inputs and class numbers as arrays, and the public facts about them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from noisette.data.errors import refuse


@dataclass(frozen=True, eq=False)
class Split:
    """Examples of one split: ``inputs`` float32, (n, c, h, w) or (n, features); ``targets`` int64, (n,).

    Inputs of a text are int64, (n, tokens): rows of the ``vectors`` of its data set.
    """

    inputs: np.ndarray
    targets: np.ndarray


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set ready for training, checked: as many labels as inputs, every label in 0..classes-1.

    ``declared_size`` is a public constant, written in the reader or declared by the user, never counted from the
    records: whatever is made public may depend on it, nothing public may depend on ``len(train.inputs)``.
    ``note`` says what a report of results must say, for example that a copy is partial; "" if nothing.
    ``vectors`` are the word vectors of a text, float32, (words, dims), public and independent of the records.

    Raises:
        DataError: lists every split whose labels and inputs do not fit each other, the declared classes or the vectors.
    """

    name: str
    train: Split
    test: Split | None
    classes: int
    declared_size: int
    note: str
    vectors: np.ndarray | None = None

    def __post_init__(self) -> None:
        problems = _faults("train", self.train, classes=self.classes)
        if self.test is not None:
            problems += _faults("test", self.test, classes=self.classes)
            if self.test.inputs.shape[1:] != self.train.inputs.shape[1:]:
                problems.append(
                    f"the examples of train have shape {self.train.inputs.shape[1:]}, "
                    f"those of test {self.test.inputs.shape[1:]}; they must agree"
                )
        if self.vectors is not None:
            problems += _word_faults("train", self.train, words=len(self.vectors))
            if self.test is not None:
                problems += _word_faults("test", self.test, words=len(self.vectors))
        refuse(self.name, problems)


def _faults(name: str, split: Split, *, classes: int) -> list[str]:
    faults = []
    if len(split.inputs) != len(split.targets):
        faults.append(f"{name} has {len(split.inputs)} inputs but {len(split.targets)} labels; each needs its own")
    outside = np.flatnonzero((split.targets < 0) | (split.targets >= classes))
    if len(outside):
        faults.append(
            f"{name} has {len(outside)} labels outside 0..{classes - 1}, the first at index {outside[0]}; "
            f"correct them or the number of classes"
        )
    return faults


def _word_faults(name: str, split: Split, *, words: int) -> list[str]:
    if split.inputs.ndim != 2 or split.inputs.dtype.kind != "i":
        got = f"{split.inputs.dtype} of shape {split.inputs.shape}"
        return [f"{name} has inputs of type {got}; with word vectors they are integers, (n, tokens)"]
    outside = np.flatnonzero(((split.inputs < 0) | (split.inputs >= words)).any(axis=1))
    if len(outside):
        return [f"{name} has {len(outside)} texts with words outside 0..{words - 1}, the first at index {outside[0]}"]
    return []
