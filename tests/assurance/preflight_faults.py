"""Faults of the preflight: what it does not try, does not compare, or does not take again."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from noisette.clipping.per_example import PerExampleClip
from noisette.validation import deterministic
from noisette.validation.checked_calls import CheckedCalls
from noisette.validation.probe_inputs import NORMAL
from planted import Mutant, Patch

_BLIND = "redteam/test_blind_preflight.py::test_refused_in_the_first_step"
_GATES = "redteam/test_random_gates.py::test_gate_is_refused_in_the_first_step"
_TWICE = "redteam/test_random_gates.py::test_two_permutations_do_not_hide_each_other"
_LATE = "redteam/test_late_coupling.py::test_refused_in_the_step_in_which_it_begins"


def normal_inputs_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.validation.usable_inputs.RANDOM_KINDS", (NORMAL,))


def nothing_proved_passes(patch: pytest.MonkeyPatch) -> None:
    """Outputs that are not finite and gradients of zero count as checked."""
    patch.setattr("noisette.validation.usable_inputs._is_finite", lambda model, example: True)
    patch.setattr("noisette.validation.additivity._report_unproven", lambda *_: None)


def single_precision(patch: pytest.MonkeyPatch) -> None:
    """The sums are compared with the tolerance of single precision, and so are the outputs."""
    patch.setattr("noisette.validation.additivity.in_double", nullcontext)
    patch.setattr("noisette.validation.additivity._doubled", lambda example: example)
    patch.setattr("noisette.validation.batch_size_independence._TOLERANCE", 1e-2)


def one_level(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.validation.additivity.LEVELS", (0.75,))
    patch.setattr("noisette.validation.batch_size_independence.LEVELS", (0.75,))
    patch.setattr("noisette.validation.batch_size_independence.EXTREME_LEVELS", ())


def turned_round(patch: pytest.MonkeyPatch) -> None:
    """A permutation is taken for a reversal, so that a second one takes it back."""
    patch.setitem(deterministic._SAMPLES, torch.randperm, lambda u, output, given: output.sort(descending=True).values)


def without(name: str) -> Patch:
    """A source of randomness is left alone."""
    return lambda patch: patch.setattr(f"noisette.validation.deterministic.{name}", lambda uniform: nullcontext())


def attributes_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckedCalls, "_changed_attributes", lambda self, model: False)


def structure_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.validation.checked_calls._structure", lambda model: ())


def arguments_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.validation.checked_calls._form", lambda call: ())
    patch.setattr("noisette.validation.checked_calls._axes", lambda call: ())


def sizes_unseen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CheckedCalls, "larger_size", lambda self, call: None)


def sums_dropped(patch: pytest.MonkeyPatch) -> None:
    """A check between two microbatches takes the sums that are pending."""
    patch.setattr(PerExampleClip, "set_aside", lambda self: nullcontext())


MUTANTS = [
    Mutant(
        "preflight with normal inputs alone",
        "a model that mixes other examples than these passes",
        normal_inputs_alone,
        (_BLIND, "redteam/test_blind_preflight.py::test_harmless_models_of_positive_numbers_train_exactly"),
    ),
    Mutant("preflight that saw nothing passes", "models of logarithms mix examples", nothing_proved_passes, (_BLIND,)),
    Mutant("preflight in single precision", "a coupling of 1e-4 passes and grows", single_precision, (_BLIND,)),
    Mutant("one level of random numbers", "gates that were shut then mix examples", one_level, (_GATES,)),
    Mutant(
        "two permutations take each other back",
        "a batch that is permuted twice mixes examples",
        turned_round,
        (_TWICE,),
    ),
    Mutant(
        "two preflights set the default type in turn",
        "the process computes in double precision",
        lambda patch: patch.setattr("noisette.validation.double_precision._ONE_AT_A_TIME", nullcontext()),
        ("validation/test_double_precision.py::test_two_at_once_leave_the_default_type",),
    ),
    Mutant("Python's randomness left alone", "gates made of it mix examples", without("_python_random"), (_GATES,)),
    Mutant(
        "NumPy's randomness left alone",
        "gates made of it mix examples, and harmless noise is refused",
        without("_numpy_random"),
        (_GATES, "redteam/test_random_gates.py::test_harmless_randomness_is_accepted"),
    ),
    Mutant("attributes not looked at", "a flag mixes examples later", attributes_unseen, (_LATE,)),
    Mutant("modules not looked at", "a layer that is replaced mixes examples", structure_unseen, (_LATE,)),
    Mutant("arguments not looked at", "another argument mixes examples", arguments_unseen, (_LATE,)),
    Mutant(
        "sizes not looked at",
        "a large microbatch mixes examples",
        sizes_unseen,
        ("redteam/test_late_coupling.py::test_microbatches_larger_than_any_that_was_checked",),
    ),
    Mutant(
        "pending sums dropped by a check",
        "the microbatches before a change of mode are lost without a word",
        sums_dropped,
        ("redteam/test_late_coupling.py::test_a_mode_that_changes_between_microbatches_loses_nothing",),
    ),
]
