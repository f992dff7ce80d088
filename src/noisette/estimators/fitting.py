"""One private fit of a small model to rows that are in memory."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from noisette.accounting import Ledger
from noisette.accounting.budget_search import SEE_PLAN
from noisette.clipping.per_example import PerExampleClip
from noisette.run.private import PrivateRun
from noisette.run.privatize import privatize
from noisette.training.defaults import MAX_GRAD_NORM, MOMENTUM, batches_for, delta_for, learning_rate_for

_ROWS_AT_ONCE = 4096

Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # of the model and a batch of one example


@dataclass(frozen=True)
class Settings:
    """The public numbers of a fit; ``None`` stands for the rule of ``training.defaults``."""

    epsilon: float
    delta: float | None
    size: int
    epochs: float | None
    batch_size: int | None
    learning_rate: float | None
    ledger: Ledger | Path | str | None
    curvature: float | None  # the largest second derivative of the loss, where it has one


@dataclass(frozen=True)
class Fitted:
    """A model after its fit: the mean of its weights over the second half of the steps, and what the fit cost."""

    model: nn.Module
    epsilon: float
    delta: float
    noise_multiplier: float
    sampling_rate: float
    expected_batch_size: int
    steps: int
    learning_rate: float
    accountant: str
    neighbouring: str


def fit(model: nn.Module, fixed: nn.Module, loss: Loss, rows: tuple[Tensor, Tensor], settings: Settings) -> Fitted:
    """Train the model on the rows, each of which is one record, within the budget.

    Args:
        model: its weights are changed.
        fixed: what each row goes through by itself before the model; it has no weights.
        loss: of one example, with a batch axis of length 1.
        rows: inputs and targets, one of each for a record; their number plays no part in anything public.
        settings: the declarations.

    Guarantee: (epsilon, delta) of the settings for adding or removing one row, together with everything in the ledger.

    Raises:
        ValueError: a number is outside its domain, or the budget does not allow the steps.
        PrivacyError: the ledger is in use, or has no budget left.
    """
    batches = batches_for(settings.size)
    batch_size = settings.batch_size or min(batches.expected_batch_size, settings.size)
    delta = settings.delta if settings.delta is not None else delta_for(settings.size)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=MOMENTUM)
    clip = PerExampleClip(model, max_grad_norm=MAX_GRAD_NORM, capture="eager")  # a step takes milliseconds
    run = privatize(
        clip,
        optimizer,
        rows,
        expected_batch_size=batch_size,
        public_size=settings.size,
        epochs=settings.epochs if settings.epochs is not None else batches.epochs,
        epsilon=settings.epsilon,
        delta=delta,
        ledger=settings.ledger,
    )
    weights = sum(p.numel() for p in model.parameters())
    with run:
        rate = settings.learning_rate
        if rate is None:
            rate = learning_rate_for(
                dimensions=weights,
                noise_multiplier=run.noise_multiplier,
                expected_batch_size=batch_size,
                steps=run.steps,
                momentum=MOMENTUM,
                curvature=settings.curvature,
            )
        optimizer.param_groups[0]["lr"] = rate
        _warn_of_noise(run, batch_size, weights)
        averaged = _train(run, model, fixed, optimizer, loss)
        return Fitted(
            averaged,
            run.epsilon(delta=delta),
            delta,
            run.noise_multiplier,
            run.sampling_rate,
            batch_size,
            run.steps,
            rate,
            run.accountant.name,
            run.event.relation,
        )


def _warn_of_noise(run: PrivateRun, batch_size: int, weights: int) -> None:
    """Warn where all gradients of the run, if they agreed, would be smaller than the noise on all weights."""
    if math.sqrt(run.steps) * batch_size < run.noise_multiplier * math.sqrt(weights):
        spent = ", a ledger with more left of its budget" if run.ledger.events else ""
        warnings.warn(
            f"with noise multiplier {run.noise_multiplier:.4g}, batches of {batch_size} and {weights} weights the "
            f"noise hides what there is to learn; use more rows, a larger epsilon{spent} or fewer features: {SEE_PLAN}",
            stacklevel=5,
        )


def _train(run: PrivateRun, model: nn.Module, fixed: nn.Module, optimizer: torch.optim.SGD, loss: Loss) -> nn.Module:
    """All steps of the run; the model with its mean weights over the second half of them, in evaluation mode."""
    averaged = AveragedModel(model)
    for batch in run.batches():
        for inputs, targets in batch.microbatches(_ROWS_AT_ONCE):
            run.accumulate(loss, fixed(inputs), targets)
        optimizer.step()
        optimizer.zero_grad()
        if 2 * run.steps_spent >= run.steps:
            averaged.update_parameters(model)
    return averaged.module.eval()
