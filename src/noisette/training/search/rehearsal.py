"""A first step of a few runs on random numbers in the place of the records, before a search is charged."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from noisette.accounting import Event, Ledger
from noisette.data import DataSet, Split
from noisette.run.private import PrivateRun
from noisette.training.loop import train
from noisette.training.outcome import Outcome, Point
from noisette.training.recipe import Recipe
from noisette.training.search.scores import Score

_RECORDS = 64


@dataclass(frozen=True)
class Rehearsed:
    """What every run of a search releases.

    Args:
        step: the release of a step.
        others: what a run releases beside its steps.
        model_bytes: the size of the largest model.
    """

    step: Event
    others: dict[Event, int]
    model_bytes: int

    def releases(self, steps: int) -> dict[Event, int]:
        """The releases of a run of so many steps."""
        return {self.step: steps, **self.others}


def rehearse(
    recipes: Iterable[Recipe], data: DataSet, public: DataSet | None, score: Score, noise_multiplier: float
) -> Rehearsed:
    """Take one step by each of the recipes on made-up records.

    A search discards what its runs raise, and is paid for even if all of them fail: mistakes have to show before.

    Args:
        recipes: of which any mistake shall show.
        data: the data set, of which no record is used.
        public: the data set of the public examples.
        score: how runs are compared.
        noise_multiplier: that of a whole step.

    Raises:
        ValueError, PrivacyError, RuntimeError: a recipe cannot be trained, or two of them release different things.
    """
    made_up, held = score.split(_made_up(data))
    found: list[Rehearsed] = []
    for recipe in recipes:
        ledger, one_step = Ledger(dataset=data.name), _OneStep()
        outcome = train(
            recipe,
            made_up,
            public=public,
            ledger_path=None,
            on_step=one_step,
            points=1,
            ledger=ledger,
            noise_multiplier=noise_multiplier,
        )
        if not one_step.is_taken:
            raise KeyboardInterrupt  # it was pressed before
        score.of(outcome, held, ledger)
        found.append(_released(outcome, ledger))
    first, *others = found
    for other in others:
        if (other.step, other.others) != (first.step, first.others):
            raise ValueError(
                f"the settings of --over change what a run releases, from {_in_words(first)} to {_in_words(other)}, "
                "and a search has one price for all its runs; leave out what changes that, such as privacy.clipping"
            )
    return replace(first, model_bytes=max(each.model_bytes for each in found))


def _released(outcome: Outcome, ledger: Ledger) -> Rehearsed:
    step = outcome.run.event
    others = {event: times for event, times in ledger.events.items() if event != step}
    size = sum(value.nbytes for value in outcome.model.state_dict().values())
    return Rehearsed(step, others, size)


def _in_words(released: Rehearsed) -> str:
    parts = getattr(released.step, "parts", ())
    step = f"{' and '.join(name for name, _ in parts)} in each step" if parts else "a gradient in each step"
    return " and ".join([step, *map(repr, released.others)])


class _OneStep:
    """Ends training after its first step."""

    is_taken = False

    def __call__(self, run: PrivateRun, point: Point) -> None:
        self.is_taken = True
        raise KeyboardInterrupt


def _made_up(data: DataSet) -> DataSet:
    """A data set of the same form whose records are random numbers."""
    random = np.random.default_rng(0)
    shape = (_RECORDS, *data.train.inputs.shape[1:])
    words = data.words if data.vectors is None else len(data.vectors)
    inputs = random.integers(words, size=shape) if words else random.random(shape, np.float32)
    targets: np.ndarray = random.integers(data.classes, size=_RECORDS)
    if data.target is not None:
        targets = random.uniform(-1, 1, _RECORDS).astype(np.float32)
    records = Split(inputs, targets)
    return replace(data, train=records, test=records)
