"""Faults of the vectorised loss: values of one example that reach another one past ``vmap``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from noisette.clipping.engines import OneByOneWarning
from noisette.core import backward, trace
from noisette.core import loss as losses
from noisette.core.forms import PHYSICAL, Dense
from noisette.core.loss import Draws, OutsideTensors, answered
from noisette.core.trace import Recorder
from noisette.rules import physical_operations
from planted import Mutant

_MEET = "redteam/test_separate_by_construction.py::test_no_value_reaches_another_example"
_SEPARATE = "rules/test_physical_operations.py::test_equal_to_single_examples_and_separate"
_ACCUMULATE = "clipping/test_accumulate.py"
_SEPARATE_LOSSES = "redteam/test_separate_by_construction.py"


def shared_mask(patch: pytest.MonkeyPatch) -> None:
    """Attention takes the mask of the first example for all."""
    attend = torch.nn.functional.scaled_dot_product_attention
    leave = PHYSICAL[attend]

    def of_first(run: Any, b: int, func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        def shared(tensor: Tensor, count: int) -> Tensor:
            inner = physical_operations.__dict__["_real_one_for_each"](tensor, count)
            return inner[:1].expand_as(inner) if tensor.dim() < 3 else inner

        patch.setattr(physical_operations, "_one_for_each", shared)
        return leave(run, b, func, args, kwargs)

    patch.setattr(physical_operations, "_real_one_for_each", physical_operations._one_for_each, raising=False)
    patch.setitem(PHYSICAL, attend, of_first)


def joint_values(patch: pytest.MonkeyPatch) -> None:
    """Neither where it is made nor where it is used."""
    patch.setattr(Recorder, "_check_separate", lambda *_: None)
    patch.setattr(OutsideTensors, "check", lambda *_: None)


def rows_as_one_example(patch: pytest.MonkeyPatch) -> None:
    """Group norm centres its output over the examples."""
    norm = torch.nn.functional.group_norm
    leave = PHYSICAL[norm]

    def mixed(*arguments: Any) -> Any:
        output = leave(*arguments)
        return output - output.mean(0, keepdim=True)

    patch.setitem(PHYSICAL, norm, mixed)


def sees_the_batch(patch: pytest.MonkeyPatch) -> None:
    """The loss is called with all examples, and their mean is the loss of each."""

    def together(loss: Any, model: Any, batch: Any, *others: Any) -> Tensor:
        losses = loss(model, *batch.args, **batch.kwargs)
        return losses.reshape(-1).mean().expand(batch.count)

    patch.setattr(backward, "vectorized_losses", together)


def mixes_sequences(patch: pytest.MonkeyPatch) -> None:
    """The sequences of a recurrence come back in another order."""
    split = physical_operations._split_at

    def turned(output: Tensor, axis: int, b: int, n: int) -> Tensor:
        return split(output, axis, b, n).roll(1, 0)

    patch.setattr(physical_operations, "_split_at", turned)


def shares_copies(patch: pytest.MonkeyPatch) -> None:
    """The gradient of a copied weight is the mean over the examples."""
    patch.setattr("noisette.core.trace.Dense", lambda dy: Dense(dy.mean(0, keepdim=True).expand_as(dy)))


def first_answers_for_all(patch: pytest.MonkeyPatch) -> None:
    """Where code asks for a value, all examples go on with that of the first."""

    def answer(question: Any, tensor: Tensor, *options: Any) -> Any:
        first = losses.physical(tensor)[:1]
        return answered(question, losses.batched(first, losses.level_of(tensor)), *options)

    patch.setattr("noisette.core.trace.answered", answer)


MUTANTS = [
    Mutant(
        "the first example answers for all",
        "a branch of one record scales the gradients of others",
        first_answers_for_all,
        ("core/test_branches.py::test_examples_that_disagree_are_computed_apart",),
    ),
    Mutant(
        "each example draws the numbers that decide its branch",
        "which records share a draw depends on who is in the microbatch",
        lambda patch: patch.setattr(Draws, "shared", lambda self, func, args, keywords: func(*args, **keywords)),
        ("core/test_branches.py::test_a_random_branch_is_the_same_for_all_records_of_a_batch",),
    ),
    Mutant(
        "values of an earlier call's examples are taken",
        "a record of one batch changes the gradients of other records in the next",
        lambda patch: patch.setattr(Recorder, "_check_of_this_call", lambda *_: None),
        (f"{_MEET}[carries_detached]", f"{_ACCUMULATE}::test_values_of_the_examples_of_an_earlier_call_are_refused"),
    ),
    Mutant(
        "one value for all examples is taken",
        "a branch on it lets one record scale all gradients",
        joint_values,
        (f"{_MEET}[branches_on_any]",),
    ),
    Mutant(
        "any tensor from outside is taken",
        "class weights of the batch couple its examples",
        lambda patch: patch.setattr(OutsideTensors, "check", lambda *_: None),
        ("core/test_outside.py::test_a_tensor_computed_from_the_batch_is_refused_in_the_first_step",),
    ),
    Mutant(
        "tensors from outside are not looked at in the first step",
        "class weights of the first batch couple its examples, and stay for good",
        lambda patch: patch.setattr(OutsideTensors, "before_first_batch", lambda *_: None),
        ("core/test_outside.py::test_a_tensor_computed_from_the_batch_is_refused_in_the_first_step",),
    ),
    Mutant(
        "the records themselves are taken for a constant",
        "inputs are centred by the mean of all records, without noise",
        lambda patch: patch.setattr(OutsideTensors, "_holds_records", lambda *_: False),
        ("run/test_remedies.py::test_a_loss_that_reads_the_data_set_itself_centres_by_public_data",),
    ),
    Mutant(
        "texts are passed through",
        "each example is computed with the texts of all",
        lambda patch: patch.setattr(losses, "_has_entries", lambda value: False),
        ("core/test_loss.py::test_entries_of_several_examples_are_refused_where_the_loss_reads_them",),
        seen_as=(OneByOneWarning,),
    ),
    Mutant(
        "a write is not told from other operations",
        "with a batch of one, values of an example are written into the weights, past the noise",
        lambda patch: patch.setattr(trace, "_writes", lambda func: False),
        (f"{_ACCUMULATE}::test_what_cannot_be_vectorised_is_refused_in_words",),
        seen_as=(RuntimeError, OneByOneWarning),
    ),
    Mutant(
        "attention takes the mask of the first example",
        "where one record is padded decides what is seen of the others",
        shared_mask,
        (_SEPARATE,),
    ),
    Mutant(
        "a norm is taken over the examples",
        "each record moves the gradients of all others",
        rows_as_one_example,
        (_SEPARATE,),
    ),
    Mutant(
        "a loss that is given the batch",
        "one record moves the gradients of all others",
        sees_the_batch,
        (f"{_SEPARATE_LOSSES}::test_a_record_moves_a_coupled_loss_by_no_more_than_the_bound",),
        seen_as=(RuntimeError, OneByOneWarning),
    ),
    Mutant(
        "sequences returned to other examples",
        "an example is clipped by the gradient of another one",
        mixes_sequences,
        (_SEPARATE,),
    ),
    Mutant(
        "copies of a weight that share their gradient",
        "the gradient of one example is that of all",
        shares_copies,
        (f"{_ACCUMULATE}::test_what_models_do_is_exact",),
    ),
]
