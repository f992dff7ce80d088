"""The result of every reader: inputs and class numbers as arrays, with the public facts about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from noisette.data.errors import refuse
from noisette.data.target import Target


@dataclass(frozen=True, eq=False)
class Split:
    """Examples of one split: ``inputs`` float32, (n, c, h, w) or (n, features); ``targets`` int64, (n,).

    Inputs of a text are int64, (n, tokens): rows of the ``vectors`` of its data set, or numbers of words. Targets of a
    regression are float32, from -1 to 1. ``users`` are the ids of whom each
    example belongs to, in their order; ``None`` if they are not known.
    """

    inputs: np.ndarray
    targets: np.ndarray
    users: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set ready for training, checked: as many labels as inputs, every label in 0..classes-1.

    ``declared_size`` is a public constant, written in the reader or declared by the user, never counted from the
    records: public results may depend on it, but never on ``len(train.inputs)``.
    ``note`` is what a report of results must mention, for example that a copy is partial; "" if nothing.
    ``vectors`` are the word vectors of a text, float32, (words, dims), public and independent of the records.
    ``words`` is how many numbers of words there are in a text without such vectors, whose meaning a model learns.
    ``features`` are the columns of a table that are inputs, in their order; () where inputs are no such columns.
    ``target`` is the number that a regression predicts, ``None`` where classes are predicted; ``classes`` is then 1.

    Raises:
        DataError: lists every split whose labels and inputs contradict each other, the declared classes or the vectors.
    """

    name: str
    train: Split
    test: Split | None
    classes: int
    declared_size: int
    note: str = ""
    vectors: np.ndarray | None = None
    words: int = 0
    target: Target | None = None
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        splits = {"train": self.train} | ({} if self.test is None else {"test": self.test})
        problems = [problem for name, split in splits.items() for problem in self._label_problems(name, split)]
        shapes = [split.inputs.shape[1:] for split in splits.values()]
        if shapes[0] != shapes[-1]:
            problems.append(f"the examples of train have shape {shapes[0]}, those of test {shapes[-1]}; expected equal")
        if words := self.words if self.vectors is None else len(self.vectors):
            for name, split in splits.items():
                problems += _word_problems(name, split, words=words)
        refuse(self.name, problems)

    def _label_problems(self, name: str, split: Split) -> list[str]:
        """Messages on labels of the split that are absent or not in 0..classes-1."""
        problems = []
        if len(split.inputs) != len(split.targets):
            problems.append(f"{name} has {len(split.inputs)} inputs but {len(split.targets)} labels; expected equal")
        if self.target is not None:
            outside = np.flatnonzero(~(np.abs(split.targets) <= 1))
            return [*problems, f"{name} has {len(outside)} targets outside -1..1"] if len(outside) else problems
        outside = np.flatnonzero((split.targets < 0) | (split.targets >= self.classes))
        if len(outside):
            problems.append(
                f"{name} has {len(outside)} labels outside 0..{self.classes - 1}, the first at index {outside[0]}; "
                f"correct them or the number of classes"
            )
        return problems


def _word_problems(name: str, split: Split, *, words: int) -> list[str]:
    if split.inputs.ndim != 2 or split.inputs.dtype.kind != "i":
        got = f"{split.inputs.dtype} of shape {split.inputs.shape}"
        return [f"{name} has inputs of type {got}; of words they are integers, (n, tokens)"]
    outside = np.flatnonzero(((split.inputs < 0) | (split.inputs >= words)).any(axis=1))
    if len(outside):
        return [f"{name} has {len(outside)} texts with words outside 0..{words - 1}, the first at index {outside[0]}"]
    return []


def unit_pixels(pixels: np.ndarray) -> np.ndarray:
    """Float32 in [0, 1], (n, c, h, w), from bytes shaped (n, h, w) or (n, h, w, c), by their known range.

    Inputs are not standardized: even the published means and deviations were computed from training images.

    >>> unit_pixels(np.full((2, 4, 5, 3), 255, np.uint8)).shape
    (2, 3, 4, 5)
    """
    channels_first = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return np.divide(channels_first, np.float32(255), dtype=np.float32, order="C")
