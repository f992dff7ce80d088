"""What every reader returns: inputs and targets as arrays, with the public facts about them; and what it refuses."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

_LINES = 10  # problems listed; the others are counted
_ROWS = 5  # row numbers listed for one problem


class DataError(ValueError):
    """A data set cannot be read as declared; the message says what is wrong, where, and how to correct it.

    It lists all problems at once and never contains a private value.
    """


def refuse(subject: str, problems: Sequence[str]) -> None:
    """Raise one ``DataError`` that lists the first ten problems and counts the others; do nothing if there are none."""
    if len(problems) == 1:
        raise DataError(f"{subject}: {problems[0]}")
    if problems:
        more = [f"and {len(problems) - _LINES} more"] if len(problems) > _LINES else []
        raise DataError("\n  ".join([f"{subject}: {len(problems)} problems", *problems[:_LINES], *more]))


def in_rows(indices: Sequence[int], numbers: Sequence[int] | None = None) -> str:
    """The rows at these indices as text, by their numbers, which are counted from 1 unless given.

    >>> in_rows([2]), in_rows([0, 6]), in_rows(range(8))
    ('in row 3', 'in rows 1 and 7', 'in rows 1, 2, 3, 4, 5 and 3 more')
    """
    rows = [str(numbers[index] if numbers else int(index) + 1) for index in indices[:_ROWS]]
    if len(indices) == 1:
        return f"in row {rows[0]}"
    last = f"{len(indices) - _ROWS} more" if len(indices) > _ROWS else rows.pop()
    return f"in rows {', '.join(rows)} and {last}"


def scaled(values: np.ndarray, *, low: float, high: float) -> np.ndarray:
    """Values clipped to [low, high] and mapped to [-1, 1]."""
    return (np.clip(values, low, high) - low) * (2 / (high - low)) - 1


@dataclass(frozen=True)
class Target:
    """The number that a regression predicts: its declared bounds and its unit. Numbers outside count as the bound.

    A model predicts it on the scale of -1 to 1. A ``DataError`` if the bounds are not finite and ascending.
    """

    low: float
    high: float
    unit: str = ""

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            refuse("target", [f"expected finite low < high, got low = {self.low}, high = {self.high}"])

    def scaled(self, values: np.ndarray) -> np.ndarray:
        """Values in the unit of the target on the scale of the model, float32; they are clipped to the bounds."""
        return scaled(values, low=self.low, high=self.high).astype(np.float32)

    def unscaled(self, predictions: np.ndarray) -> np.ndarray:
        """Predictions in the unit of the target, float64; they are clipped to the bounds."""
        return (np.clip(predictions.astype(np.float64), -1, 1) + 1) * ((self.high - self.low) / 2) + self.low


@dataclass(frozen=True, eq=False)
class Split:
    """Examples of one split: ``inputs`` float32, (n, c, h, w) or (n, features); ``targets`` int64, (n,).

    Inputs of a text are int64, (n, tokens): numbers of words. Targets of a regression are float32, from -1 to 1.
    ``users`` are the ids of whom each example belongs to, ``None`` if not known.
    """

    inputs: np.ndarray
    targets: np.ndarray
    users: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class DataSet:
    """A data set ready for training, checked: a ``DataError`` lists labels and inputs that contradict what is declared.

    ``declared_size`` is a public constant, never counted from the records: public results may depend on it, but never
    on ``len(train.inputs)``. ``note`` is what a report of results must mention, such as that a copy is partial.
    ``words`` is how many numbers of words there are in a text, 0 for other examples.
    ``features`` are the columns of a table that are inputs, in their order. ``target`` is the number that a regression
    predicts, ``None`` where classes are predicted; ``classes`` is then 1.
    """

    name: str
    train: Split
    test: Split | None
    classes: int
    declared_size: int
    note: str = ""
    words: int = 0
    target: Target | None = None
    features: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        splits = {"train": self.train} | ({} if self.test is None else {"test": self.test})
        problems = [f"{name} has {problem}" for name, split in splits.items() for problem in self._problems(split)]
        shapes = [split.inputs.shape[1:] for split in splits.values()]
        if shapes[0] != shapes[-1]:
            problems.append(f"the examples of train have shape {shapes[0]}, those of test {shapes[-1]}; expected equal")
        refuse(self.name, problems)

    def _problems(self, split: Split) -> list[str]:
        inputs, targets, problems = split.inputs, split.targets, []
        if len(inputs) != len(targets):
            problems.append(f"{len(inputs)} inputs but {len(targets)} labels; expected equal")
        if self.target is not None:
            if outside := np.count_nonzero(~(np.abs(targets) <= 1)):
                problems.append(f"{outside} targets outside -1..1")
        elif len(outside := np.flatnonzero((targets < 0) | (targets >= self.classes))):
            first = f"the first at index {outside[0]}; correct them or the number of classes"
            problems.append(f"{len(outside)} labels outside 0..{self.classes - 1}, {first}")
        if (words := self.words) and (inputs.ndim != 2 or inputs.dtype.kind != "i"):
            problems.append(f"inputs of {inputs.dtype}, shape {inputs.shape}; of words they are integers, (n, tokens)")
        elif words and len(outside := np.flatnonzero(((inputs < 0) | (inputs >= words)).any(axis=1))):
            problems.append(f"{len(outside)} texts with words outside 0..{words - 1}, the first at index {outside[0]}")
        return problems


def random_records(like: DataSet, count: int, seed: int = 0) -> DataSet:
    """A data set of so many random records with the shapes, classes and declared size of another."""
    random = np.random.default_rng(seed)
    shape = (count, *like.train.inputs.shape[1:])
    inputs = random.integers(0, like.words, shape) if like.words else random.random(shape, dtype=np.float32)
    classes, numbers = random.integers(0, like.classes, count), random.uniform(-1, 1, count).astype(np.float32)
    return replace(like, train=Split(inputs, classes if like.target is None else numbers), test=None, note="")


def unit_pixels(pixels: np.ndarray) -> np.ndarray:
    """Float32 in [0, 1], (n, c, h, w), from bytes shaped (n, h, w) or (n, h, w, c), by their known range.

    Inputs are not standardized: even the published means and deviations were computed from training images.
    """
    channels_first = pixels[:, None] if pixels.ndim == 3 else np.moveaxis(pixels, 3, 1)
    return np.divide(channels_first, np.float32(255), dtype=np.float32, order="C")


def hold_out(data: DataSet, share: float, key: bytes) -> DataSet:
    """The data set with each of its records held out with probability ``share``; the rest is left for training.

    A keyed hash of its place in the file decides, or of its user where users are known, by a secret key of each run.

    Guarantee: with a secret key drawn at random, adding or removing one record changes the training part by this record
    or not at all, so a guarantee for the training part is one for the training that :func:`noisette.data.load` read.
    There is none for what is published about the part held out: without noise it reveals its records.
    """
    if not 0 < share < 1:
        raise DataError(f"expected 0 < holdout < 1, got holdout={share}")
    if data.test is not None:
        raise DataError(f"{data.name} has test examples already; leave holdout out, or the test examples")
    units = range(len(data.train.inputs)) if data.train.users is None else data.train.users
    digests = (hashlib.blake2b(str(unit).encode("utf-8", "surrogatepass"), key=key, digest_size=8) for unit in units)
    held = np.array([int.from_bytes(digest.digest()) / 2**64 < share for digest in digests], dtype=bool)
    if held.all() or not held.any():
        raise DataError(f"{data.name} has too few records to hold out {share:g}: one part is empty; change holdout")
    size = max(1, round(data.declared_size * (1 - share)))
    return replace(data, train=_part(data.train, ~held), test=_part(data.train, held), declared_size=size)


def _part(split: Split, chosen: np.ndarray) -> Split:
    users = None if split.users is None else [split.users[index] for index in np.flatnonzero(chosen).tolist()]
    return Split(split.inputs[chosen], split.targets[chosen], users)
