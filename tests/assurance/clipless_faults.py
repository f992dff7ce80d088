"""Faults of the bound that comes from Lipschitz networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from noisette.lipschitz import propagation
from noisette.lipschitz.bound import LipschitzBound, Part, PerLayerAllocation, ScoreClipping, weight_fingerprint
from noisette.nn.lipschitz import BoundedInput
from planted import Mutant

_HERE = "lipschitz/test_lipschitz_bound.py"


def stale_projection(patch: pytest.MonkeyPatch) -> None:
    """Weights are projected when they are taken over, and not after the steps that move them."""

    def taken_over(self: LipschitzBound) -> None:
        self._projected = weight_fingerprint(self.model)

    patch.setattr(LipschitzBound, "after_step", taken_over)


def unbounded_input(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BoundedInput, "forward", lambda self, x: x)


def loss_trusted(patch: pytest.MonkeyPatch) -> None:
    """The gradient at the scores is taken as it comes."""

    patch.setattr(ScoreClipping, "clip", lambda self, gradients, losses, limit: (gradients, None))


def last_place_alone(patch: pytest.MonkeyPatch) -> None:
    """A module that stands in two places answers for one of them."""
    overwritten = lambda found: {p: value for part in found for p, value in part.items()}  # noqa: E731
    patch.setattr(propagation, "sum_sensitivities", overwritten)


def layers_do_not_add_up(patch: pytest.MonkeyPatch) -> None:
    """Each parameter has the noise that it would need alone."""
    whole = PerLayerAllocation.parts

    def parts(self: PerLayerAllocation, sensitivities: Mapping[str, float], parameters: Any) -> list[Part]:
        return [replace(p, bound=p.bound * math.sqrt(p.share)) for p in whole(self, sensitivities, parameters)]

    patch.setattr(PerLayerAllocation, "parts", parts)


def half_the_sensitivity(patch: pytest.MonkeyPatch) -> None:
    whole = LipschitzBound.sensitivities
    patch.setattr(
        LipschitzBound, "sensitivities", lambda self: {name: value / 2 for name, value in whole(self).items()}
    )


MUTANTS = [
    Mutant(
        "stale projection",
        "weights leave the set that the bound speaks of",
        stale_projection,
        (f"{_HERE}::test_a_wild_run_stays_feasible_at_every_step",),
    ),
    Mutant(
        "input not bounded",
        "a large record moves the sum by any amount",
        unbounded_input,
        (f"{_HERE}::test_a_malformed_record_adds_no_more_than_any_other",),
    ),
    Mutant(
        "loss trusted",
        "a loss steeper than it says moves the sum beyond the bound",
        loss_trusted,
        (f"{_HERE}::test_a_loss_that_breaks_its_promise_is_held_to_it",),
    ),
    Mutant(
        "half the sensitivity",
        "half the noise that is stated",
        half_the_sensitivity,
        (f"{_HERE}::test_sensitivities_are_those_of_two_layers_by_hand",),
    ),
    Mutant(
        "a module in two places counted once",
        "half the noise that its weights need",
        last_place_alone,
        ("lipschitz/test_propagation.py::test_a_module_in_two_places_counts_twice",),
    ),
    Mutant(
        "sensitivities of layers do not add up",
        "noise of k layers too small by the root of k",
        layers_do_not_add_up,
        (f"{_HERE}::test_deviations_of_two_layers_by_hand",),
    ),
]
