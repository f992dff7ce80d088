"""Faults of loops: collation, steps within steps, layers that freeze, checks between two microbatches, conversion."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from noisette.clipping import engines as recorded_rows
from noisette.core import steps
from noisette.core.batches import Batch
from noisette.core.state import ModelBuffers
from noisette.core.steps import DpSgd
from noisette.integrations import boundary
from noisette.nn import conversion
from noisette.run import loading
from noisette.run.collation import PaddedBuckets
from noisette.run.per_example import PerExampleClip
from noisette.run.private import PrivateRun
from planted import Mutant

_PADDING = "redteam/test_collation_alone.py"
_STEPS = "redteam/test_optimizer_steps.py"
_LOOPS = "run/test_harmless_loops.py"


def padded_to_the_longest(patch: pytest.MonkeyPatch) -> None:
    """Each sequence is padded to the longest of its microbatch, and a microbatch holds what comes."""

    def collate(self: PaddedBuckets, at: np.ndarray) -> Any:
        pairs = [self._records[index] for index in at.tolist()]
        ids = pad_sequence([record[0][: self.edges[-1]] for record in pairs], batch_first=True)
        return default_collate([(row, record[1]) for row, record in zip(ids, pairs, strict=True)])

    patch.setattr(PaddedBuckets, "collate", collate)
    patch.setattr(loading.Records, "buckets", property(lambda self: None, lambda self, value: None), raising=False)


def last_of_a_bucket_left_out(patch: pytest.MonkeyPatch) -> None:
    """A bucket that is not full ends where the next one begins, without its last example."""
    whole = Batch._size_and_end

    def size_and_end(self: Batch, sizes: Any, start: int) -> Any:
        chosen, end = whole(self, sizes, start)
        if start and self._buckets[start - 1] != self._buckets[min(start, len(self._buckets) - 1)]:
            self.indices[start] = self.indices[start - 1]
        return chosen, end

    patch.setattr(Batch, "_size_and_end", size_and_end)


def released_for_each_class(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "_steps_under_way", lambda optimizer: 1)


def a_step_that_never_ends(patch: pytest.MonkeyPatch) -> None:
    """Every step counts as one within another."""
    patch.setattr(steps, "_steps_under_way", lambda optimizer: 2)


def adapted_for_each_class(patch: pytest.MonkeyPatch) -> None:
    whole = DpSgd._after_step

    def after_step(self: DpSgd) -> None:
        self.bound.after_step()
        whole(self)

    patch.setattr(DpSgd, "_after_step", after_step)


def scalers_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.core.steps.refuse_scaler", lambda optimizer: None)


def small_gradients_pass_as_zero(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.core.release._is_zero", lambda grad: bool((grad.abs() < 1e-12).all()))


def moved_by_noise(patch: pytest.MonkeyPatch) -> None:
    """A frozen parameter gets its released noise."""
    patch.setattr("noisette.core.release._seen_by_hooks", lambda p, gradient: gradient)


def activations_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversion, "_added_by", lambda norm: "")


def lists_are_columns(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loading, "_check_records", lambda dataset: None)


def calls_clipped_apart(patch: pytest.MonkeyPatch) -> None:
    """Each call of the model in a step is clipped by itself."""
    accumulate = PerExampleClip.accumulate_recorded

    def each(self: PerExampleClip, calls: Any, scale: float) -> None:
        for call in calls:
            accumulate(self, [call], scale)

    patch.setattr(PerExampleClip, "accumulate_recorded", each)


def rows_not_counted(patch: pytest.MonkeyPatch) -> None:
    """A call may have any number of rows, and records may come as often as the loop gives them."""
    arrived = boundary.Boundary.arrived

    def any_number(self: boundary.Boundary, call: Any, batch: int, gradients: Any) -> None:
        self._left = max(self._left, call.count)
        arrived(self, call, batch, gradients)

    patch.setattr(boundary.Boundary, "arrived", any_number)


def pieces_not_counted_off(patch: pytest.MonkeyPatch) -> None:
    """The rows of a piece may come again in the next one."""
    whole = boundary.Boundary._end_piece

    def end_piece(self: boundary.Boundary, run: PrivateRun) -> None:
        left = self._left
        whole(self, run)
        self._left = left if self._left else 0

    patch.setattr(boundary.Boundary, "_end_piece", end_piece)


def hooks_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.core.steps._remove", lambda handles: None)


def earlier_batches_taken(patch: pytest.MonkeyPatch) -> None:
    arrived = boundary.Boundary.arrived

    def of_any_batch(self: boundary.Boundary, call: Any, batch: int, gradients: Any) -> None:
        arrived(self, call, self._batch, gradients)

    patch.setattr(boundary.Boundary, "arrived", of_any_batch)


def mean_taken_for_a_sum(patch: pytest.MonkeyPatch) -> None:
    whole = recorded_rows.clipped_sum_of
    patch.setattr("noisette.run.per_example.clipped_sum_of", lambda calls, scale, *others: whole(calls, 1.0, *others))


def rows_share_buffers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelBuffers, "lent", lambda self, *change: contextlib.nullcontext())


def known_masks(patch: pytest.MonkeyPatch) -> None:
    """A loop that seeds the generator decides which masks its records get."""
    patch.setattr(PrivateRun, "before_call", lambda self: None)


_BOUNDARY = "integrations/test_boundary.py"
MUTANTS = [
    Mutant(
        "calls for the same records are clipped apart",
        "a record moves the sum by the bound for each call",
        calls_clipped_apart,
        (f"{_BOUNDARY}::test_the_sum_is_that_of_single_records",),
    ),
    Mutant(
        "rows of calls are not counted",
        "views of a record are clipped as records of their own",
        rows_not_counted,
        (
            f"{_BOUNDARY}::test_views_of_a_record_are_several_calls",
            f"{_BOUNDARY}::test_each_record_belongs_to_its_step_once",
        ),
    ),
    Mutant(
        "rows of a piece are not counted off",
        "records come twice, and others not at all",
        pieces_not_counted_off,
        (f"{_BOUNDARY}::test_a_batch_in_pieces",),
    ),
    Mutant(
        "gradients of records of an earlier batch are taken",
        "a record is in a step that it was not drawn for",
        earlier_batches_taken,
        (f"{_BOUNDARY}::test_a_loss_of_an_earlier_batch_is_refused",),
    ),
    Mutant(
        "the mean of a loss is taken for a sum",
        "gradients shrink with the number of records, which they give away",
        mean_taken_for_a_sum,
        (f"{_BOUNDARY}::test_the_sum_is_that_of_single_records",),
    ),
    Mutant(
        "rows share the buffers of the model",
        "a record is computed with what others have left",
        rows_share_buffers,
        (f"{_BOUNDARY}::test_what_cannot_be_vectorised_or_recorded_is_computed_one_by_one",),
    ),
    Mutant(
        "masks of a loop that seeds torch are known",
        "a record more gives those behind it other masks, which others can compute",
        known_masks,
        ("integrations/test_opacus_loops.py::test_masks_are_secret",),
    ),
    Mutant(
        "padded to the longest of the microbatch",
        "one long record changes the gradients of all others",
        padded_to_the_longest,
        (f"{_PADDING}::test_a_forged_record_moves_the_sum_by_no_more_than_the_bound",),
    ),
    Mutant(
        "first of a bucket replaced",
        "a record is processed twice, another one never",
        last_of_a_bucket_left_out,
        (
            f"{_PADDING}::test_the_sum_is_that_of_records_padded_one_at_a_time",
            "run/test_buckets.py::test_each_record_comes_once_in_the_bucket_of_its_own_length",
        ),
    ),
    Mutant(
        "a release for each class of an optimizer",
        "an optimizer that calls its base class cannot train, or draws noise twice",
        released_for_each_class,
        (f"{_STEPS}::test_a_step_within_a_step_releases_nothing_more",),
    ),
    Mutant(
        "a step that never ends",
        "steps without a release use whatever lies in .grad",
        a_step_that_never_ends,
        (f"{_STEPS}::test_an_error_within_a_step_does_not_open_the_next_one",),
    ),
    Mutant(
        "the bound adapts for each class of an optimizer",
        "weights are projected, and bounds moved, in the middle of a step",
        adapted_for_each_class,
        (f"{_STEPS}::test_the_bound_adapts_once_for_a_step",),
    ),
    Mutant(
        "hooks stay on the optimizer",
        "a model that was trained privately cannot be trained plainly, or by another run",
        hooks_stay,
        (f"{_STEPS}::test_the_optimizer_is_plain_again",),
    ),
    Mutant(
        "gradient scalers unseen",
        "whether a step happens follows the records",
        scalers_unseen,
        (f"{_STEPS}::test_a_grad_scaler_is_refused_with_the_reason",),
    ),
    Mutant(
        "small gradients pass as zero",
        "what is not private is taken for nothing",
        small_gradients_pass_as_zero,
        (f"{_STEPS}::test_a_gradient_that_holds_anything_is_refused",),
    ),
    Mutant(
        "frozen layers move by their noise",
        "what the user has frozen decays",
        moved_by_noise,
        (f"{_LOOPS}::test_a_layer_that_is_frozen_stops_and_the_others_are_clipped_without_it",),
    ),
    Mutant(
        "activations of batch norms lost",
        "a converted model computes something else",
        activations_lost,
        ("nn/test_conversion_of_subclasses.py::test_what_adds_something_is_refused_by_name_and_nothing_is_changed",),
    ),
    Mutant(
        "a list of columns taken for records",
        "the unit of privacy is a column",
        lists_are_columns,
        ("core/test_poisson.py::test_a_list_that_looks_like_columns_is_refused",),
    ),
]
