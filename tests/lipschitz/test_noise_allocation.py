from __future__ import annotations

import math

import pytest
import torch

from noisette import GlobalAllocation, OptimalAllocation, PerLayerAllocation

SENSITIVITIES = {"a": 0.01, "b": 0.03, "c": 0.002}
PARAMETERS = {"a": torch.zeros(1000), "b": torch.zeros(50_000), "c": torch.zeros(100)}


def deviations(allocation) -> dict[str, float]:
    """The noise standard deviation of each parameter in a release with noise multiplier one."""
    parts = allocation.parts(SENSITIVITIES, PARAMETERS)
    return {name: part.bound / math.sqrt(part.share) for part in parts for name in part.names}


@pytest.mark.parametrize(
    ("allocation", "expected", "energy"),
    [
        (GlobalAllocation(), (0.0316860, 0.0316860, 0.0316860), 51.3044),
        (PerLayerAllocation(), (0.0173205, 0.0519615, 0.0034641), 135.3012),
        (OptimalAllocation(), (0.0471979, 0.0307426, 0.0375351), 49.6240),
    ],
)
def test_noise_follows_the_closed_forms(allocation, expected, energy) -> None:
    found = deviations(allocation)
    assert list(found.values()) == pytest.approx(expected, abs=1e-7)
    assert sum(found[name] ** 2 * p.numel() for name, p in PARAMETERS.items()) == pytest.approx(energy, abs=1e-4)


@pytest.mark.parametrize(
    "allocation",
    [GlobalAllocation(), PerLayerAllocation({"a": 3.0}), OptimalAllocation()],
    ids=lambda a: type(a).__name__,
)
def test_one_example_changes_all_parameters_together_by_one_standard_deviation(allocation) -> None:
    found = deviations(allocation)
    moved = sum((SENSITIVITIES[name] / found[name]) ** 2 for name in found)
    assert moved == pytest.approx(1, rel=1e-12)
    assert sum(part.share for part in allocation.parts(SENSITIVITIES, PARAMETERS)) == pytest.approx(1, rel=1e-12)


def test_weights_for_unknown_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="weights for d, but"):
        PerLayerAllocation({"d": 1.0}).parts(SENSITIVITIES, PARAMETERS)
