"""How the runs of a search are compared: on public test examples exactly, or on records held out with noise."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.accounting import Event, Gaussian, Ledger
from noisette.accounting.calibrate import noise_multiplier_for
from noisette.core.noise import SecretKey
from noisette.core.release import BoundedSum, GaussianRelease
from noisette.data import DataSet, Split
from noisette.data.holdout import hold_out
from noisette.nn.evaluation import in_evaluation
from noisette.training.outcome import Outcome
from noisette.training.predictions import ClassFigures

PART = "right answers"
"""Name of the release of a noisy score in the ledger."""

_KEY_BYTES = 32
_SHARE_OF_EPSILON = 0.1  # what the score of one run costs by itself, unless its noise is given


class Score(Protocol):
    """How the runs of a search are compared."""

    @property
    def releases(self) -> dict[Event, int]:
        """What the score of one run releases about the records."""
        ...

    def split(self, data: DataSet) -> tuple[DataSet, Split | None]:
        """The data set to train on, and the records that only the score reads."""
        ...

    def of(self, outcome: Outcome, held: Split | None, ledger: Ledger) -> float:
        """The score of a run, larger for a better one; what it releases is charged to the ledger first."""
        ...


@dataclass(frozen=True)
class PublicScore:
    """The accuracy on test examples that are stated to be public, or the test error with a minus."""

    @property
    def releases(self) -> dict[Event, int]:
        return {}

    def split(self, data: DataSet) -> tuple[DataSet, Split | None]:
        """The data set as it is.

        Raises:
            ValueError: it has no test examples.
        """
        if data.test is None:
            raise ValueError(
                f"{data.name} has no test examples, on which --score-on public-set compares the runs; name a public "
                "file as data.test in the recipe, or hold out records with --score-on held-out"
            )
        return data, None

    def of(self, outcome: Outcome, held: Split | None, ledger: Ledger) -> float:
        found = outcome.test
        assert found is not None, "split found test examples"
        return found.accuracy if isinstance(found, ClassFigures) else -found.rmse


@dataclass(frozen=True)
class HeldOutScore:
    """The number of right answers on records held out from training, with Gaussian noise, over a public number.

    Of a predicted number, each record counts 1 less the absolute error on the scale from -1 to 1, and at least 0.

    Args:
        share: of the records, each drawn at random for the whole search, above 0 and below 1.
        noise_multiplier: standard deviation of the noise, in records.

    Guarantee: the score of a run is one Gaussian mechanism of this noise multiplier: the answer on a record depends on
    the model and that record alone, because it has a call of the model of its own, and counts from 0 to 1.

    Raises:
        ValueError: a number is outside its domain.
    """

    share: float
    noise_multiplier: float

    def __post_init__(self) -> None:
        checks.all_of(
            lambda: checks.open_fraction(hold_out=self.share),
            lambda: checks.positive(score_noise=self.noise_multiplier),
        )

    @classmethod
    def for_budget(cls, share: float, *, epsilon: float, delta: float) -> HeldOutScore:
        """The score whose noise alone costs a tenth of this epsilon."""
        checks.all_of(lambda: checks.positive(epsilon=epsilon), lambda: checks.open_fraction(delta=delta))
        tenth = _SHARE_OF_EPSILON * epsilon
        return cls(share, noise_multiplier_for(epsilon=tenth, delta=delta, sampling_rate=1.0, steps=1))

    def expected_records(self, trained: int) -> float:
        """How many records are expected to be held out, from the public number of those that are trained on."""
        return max(1.0, trained * self.share / (1 - self.share))

    @property
    def releases(self) -> dict[Event, int]:
        return {Gaussian(self.noise_multiplier, parts=((PART, 1.0),)): 1}

    def split(self, data: DataSet) -> tuple[DataSet, Split | None]:
        """The data set without the records held out, and these, drawn by a key that is then forgotten.

        Raises:
            DataError: one of the two parts is empty.
        """
        parts = hold_out(replace(data, test=None), self.share, secrets.token_bytes(_KEY_BYTES))
        return replace(parts, test=data.test), parts.test

    def of(self, outcome: Outcome, held: Split | None, ledger: Ledger) -> float:
        assert held is not None, "split held records out"
        total = right_answers(outcome.model, held, classes=outcome.data.target is None)
        for event in self.releases:
            ledger.charge(event)
        return _noised(total, self.noise_multiplier) / self.expected_records(outcome.data.declared_size)


@torch.no_grad()
def right_answers(model: nn.Module, examples: Split, *, classes: bool) -> float:
    """The sum over the examples of what each answer is worth, from 0 to 1: of a class, whether it is right.

    Each answer has a call of the model of its own, so that it is the same to the last bit whatever the others are.
    """
    device = next(model.parameters()).device
    with in_evaluation(model):
        return math.fsum(
            _worth(model(torch.as_tensor(one[None]).to(device))[0].cpu(), right, classes=classes)
            for one, right in zip(examples.inputs, examples.targets, strict=True)
        )


def _worth(output: Tensor, target: float, *, classes: bool) -> float:
    if classes:
        return float(output.argmax() == target)
    worth = 1 - abs(float(output[0]) - float(target))
    return min(max(worth, 0.0), 1.0) if math.isfinite(worth) else 0.0


def _noised(total: float, noise_multiplier: float) -> float:
    """The released number: its sensitivity is one."""
    value = torch.tensor([total], dtype=torch.float64)
    noised = torch.empty_like(value)
    release = GaussianRelease(SecretKey(), noise_multiplier, expected_batch_size=1)
    release([BoundedSum((noised,), (value,), bound=1.0, name=PART)], {}, step=0)
    assert noised.grad is not None
    return float(noised.grad)
