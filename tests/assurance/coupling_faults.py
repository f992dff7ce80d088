"""Faults of the batched way: losses that are not checked, and examples that are placed wrongly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from noisette.clipping import loss_checks, per_example
from noisette.core.forms import ExampleGradients
from noisette.gradients import batch_axis
from planted import Mutant

_LOSSES = "redteam/test_loss_coupling.py::"
_POSITIONS = "redteam/test_forged_record_positions.py::"


def checks_once(patch: pytest.MonkeyPatch) -> None:
    """Losses that end in an operation that was tested are not tested again."""
    tested: set[str] = set()

    def once(losses: Tensor, outputs: Any) -> None:
        kind = losses.grad_fn.name() if losses.grad_fn is not None else ""
        if kind not in tested:
            tested.add(kind)
            loss_checks.check_independent(losses, outputs)

    patch.setattr(per_example, "check_independent", once)


def hides_small_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows are held against the largest row of all."""

    def scaled_by(factors: Tensor, plain: Tensor, scaled: Tensor) -> bool:
        return bool(((scaled - plain * factors).abs() <= 1e-3 * plain.abs().max()).all())

    patch.setattr(loss_checks, "_scaled_by", scaled_by)


def signs_by_rank(patch: pytest.MonkeyPatch) -> None:
    """Every loss gets the same weight."""
    patch.setattr(loss_checks, "_WEIGHTS", torch.ones(8))


def ignores_faint_rows(patch: pytest.MonkeyPatch) -> None:
    """Rows far below the largest count as unmeasured."""
    seen = batch_axis._seen

    def of_large_rows(rows: Any) -> Tensor:
        return seen(rows) & (rows.largest > 1e-6 * rows.largest.nan_to_num(0, 0, 0).max())

    patch.setattr(batch_axis, "_seen", of_large_rows)


def reuses_places(patch: pytest.MonkeyPatch) -> None:
    """Places of one batch are taken for those of the next, however the model arranges its examples."""
    patch.setattr("noisette.core.trace.MOVING", set())
    patch.setattr(batch_axis.BatchAxisFinder, "_is_due", lambda self, b: False)
    placed = batch_axis._Layout.examples
    patch.setattr(batch_axis._Layout, "examples", lambda self, *, reordered: replace(placed(self, reordered=False)))


def never_measures_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(batch_axis.BatchAxisFinder, "_is_due", lambda self, b: False)


def guesses_places(patch: pytest.MonkeyPatch) -> None:
    """An example whose place is not known takes the row of another."""

    def guessed(form: ExampleGradients, order: Tensor) -> ExampleGradients:
        return form.select(order.clamp(min=0))

    patch.setattr("noisette.core.backward.placed", guessed)


MUTANTS = [
    Mutant("losses are checked once for each last operation",
           "an in-batch loss that ends like a plain one moves every gradient",
           checks_once, (_LOSSES + "test_coupled_losses_are_refused_in_whichever_batch_they_come[2-centred]",)),
    Mutant("the loss check goes by the largest row", "one huge row hides a coupling of the others",
           hides_small_rows,
           (_LOSSES + "test_coupled_losses_are_refused_in_whichever_batch_they_come[0-another_behind_a_large_row]",)),
    Mutant("the loss check gives all losses one weight", "no coupling is ever seen", signs_by_rank,
           (_LOSSES + "test_coupled_losses_are_refused_in_whichever_batch_they_come[0-contrastive]",)),
    Mutant("faint rows are not placed", "one record with a large gradient takes away the places of the others",
           ignores_faint_rows, (_POSITIONS + "test_forged_gradients_leave_the_others_where_they_are",)),
    Mutant("places are reused where examples move", "gradients are put together from several examples",
           reuses_places, (_POSITIONS + "test_harmless_batches_of_several_sizes_train_exactly",), (RuntimeError,)),
    Mutant("places are never measured anew", "a model that begins to mix later goes on",
           never_measures_again, (_POSITIONS + "test_mixing_that_comes_later_is_seen_when_places_are_measured_anew",)),
    Mutant("an example without a place takes another's row", "its gradient holds that of another example",
           guesses_places, (_POSITIONS + "test_forged_inputs_move_the_sum_by_one_bound",)),
]  # fmt: skip
