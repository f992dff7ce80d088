"""Faults of the vectorised loss: examples that meet, tensors from outside, and copies of weights that are shared."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from noisette.gradients import outside_tensors, physical_operations, vectorized
from noisette.gradients.rules.forms import Dense
from planted import Mutant

_SEPARATE = "redteam/test_separate_by_construction.py::"
_OPERATIONS = "gradients/test_physical_operations.py::"
_SUMS = "clipping/test_accumulate.py::"


def sees_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The loss is called with all examples, and their mean is the loss of each."""

    def together(loss: Any, model: Any, batch: Any, begin: Any = None) -> Tensor:
        losses = loss(model, *batch.args, **batch.kwargs)
        return losses.reshape(-1).mean().expand(batch.count)

    patch.setattr(vectorized, "vectorized_losses", together)


def trusts_outside(patch: pytest.MonkeyPatch) -> None:
    """Every tensor from outside counts as a constant."""
    patch.setattr(outside_tensors.OutsideTensors, "check", lambda self, tensor: None)


def mixes_sequences(patch: pytest.MonkeyPatch) -> None:
    """The sequences of a recurrence come back in another order."""
    split = physical_operations._split_at

    def turned(output: Tensor, axis: int, b: int, n: int) -> Tensor:
        return split(output, axis, b, n).roll(1, 0)

    patch.setattr(physical_operations, "_split_at", turned)


def mixes_attention(patch: pytest.MonkeyPatch) -> None:
    """A mask that differs by example is that of the first one."""
    one_for_each = physical_operations._one_for_each

    def first(tensor: Tensor, b: int) -> Tensor:
        rows = one_for_each(tensor, b)
        return rows[:1].expand_as(rows) if rows.dtype is torch.bool else rows

    patch.setattr(physical_operations, "_one_for_each", first)


def shares_copies(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a copied weight is the mean over the examples."""
    patch.setattr("noisette.gradients.rules.own_copies.Dense", lambda dy: Dense(dy.mean(0, keepdim=True).expand_as(dy)))


MUTANTS = [
    Mutant(
        "a loss that is given the batch",
        "one record moves the gradients of all others",
        sees_the_batch,
        (f"{_SEPARATE}test_a_record_moves_a_coupled_loss_by_no_more_than_the_bound",),
        seen_as=(RuntimeError,),
    ),
    Mutant(
        "tensors from outside accepted",
        "class weights of the batch couple its examples",
        trusts_outside,
        (f"{_SEPARATE}test_a_tensor_of_the_batch_is_no_way_around_the_arguments",),
    ),
    Mutant(
        "sequences returned to other examples",
        "an example is clipped by the gradient of another one",
        mixes_sequences,
        (f"{_OPERATIONS}test_equal_to_single_examples_and_separate",),
    ),
    Mutant(
        "one attention mask for all",
        "the length of one text decides over the gradients of others",
        mixes_attention,
        (f"{_OPERATIONS}test_equal_to_single_examples_and_separate",),
    ),
    Mutant(
        "copies of a weight that share their gradient",
        "the gradient of one example is that of all",
        shares_copies,
        (f"{_SUMS}test_sums_of_every_model",),
    ),
]
