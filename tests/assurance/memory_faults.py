"""Faults of what saves memory and waiting: sums of other gradients than the norms, half-added sums, lost digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from torch import Tensor

from noisette.core import clip as norms
from noisette.core.clip import Accumulator, Clipping, Weights
from planted import Mutant

_SUMS = "core/test_accumulator.py"
_READS = "clipping/test_no_host_sync.py"


def adds_as_it_goes(patch: pytest.MonkeyPatch) -> None:
    """Memory is found missing after a part of the sums was added."""

    def add(self: Accumulator, sums: Mapping[str, Tensor]) -> None:
        for name, sum in sums.items():
            whole_add(self, {name: sum})

    whole_add = Accumulator.add
    patch.setattr(Accumulator, "add", add)


def weights_of_zero(patch: pytest.MonkeyPatch) -> None:
    """Where the host does not wait, an example that is not finite is multiplied by zero."""
    whole = Weights.of

    def of(clipping: Clipping, norms: Tensor) -> Weights:
        return replace(whole(clipping, norms), kept=None)

    patch.setattr(Weights, "of", of)


def any_limits(patch: pytest.MonkeyPatch) -> None:
    """Bounds are kept by their number alone, so that those of the first clip stay for good."""
    first: dict[int, Tensor] = {}
    whole = norms.bounds_of
    patch.setattr(norms, "bounds_of", lambda bounds, device: first.setdefault(len(bounds), whole(bounds, device)))


def two_terms(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.rules.linear._TERMS", 2)


def never_interrupted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Accumulator, "_check_whole", lambda self: None)


def adds_in_single_precision(patch: pytest.MonkeyPatch) -> None:
    def add(total: Tensor, sum: Tensor) -> None:
        total.copy_((total.float() + sum).double())

    patch.setattr("noisette.core.clip._add", add)


MUTANTS = [
    Mutant(
        "a sum is added to tensor by tensor while memory is sought",
        "half a microbatch stays, and is added once more by the next attempt",
        adds_as_it_goes,
        (f"{_SUMS}::test_nothing_is_added_where_memory_runs_out",),
    ),
    Mutant(
        "a half-added microbatch is released",
        "examples count in some parameters and, tried again, twice in others",
        never_interrupted,
        (f"{_SUMS}::test_an_interrupted_addition_is_never_released",),
    ),
    Mutant(
        "microbatches are added in single precision",
        "the sum depends on the order of the records by more than the allowance",
        adds_in_single_precision,
        (f"{_SUMS}::test_sums_are_in_double_precision",),
    ),
    Mutant(
        "an example that is not finite is multiplied by zero on a GPU",
        "one record makes the whole sum not a number",
        weights_of_zero,
        (f"{_READS}::test_an_example_that_is_not_finite_adds_nothing",),
    ),
    Mutant(
        "the bounds on the device are those of another clip",
        "gradients are clipped to another bound than the noise is made for",
        any_limits,
        ("clipping/test_engines.py::test_batches_of_one_and_two",),
    ),
    Mutant(
        "weighted factors are split into two terms",
        "where positions cancel, the error of the sum exceeds the gradient",
        two_terms,
        ("rules/test_brain_floats.py::test_terms_hold_all_digits",),
    ),
]
