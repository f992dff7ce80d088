"""``.grad`` holds what a release wrote, or what the user's hooks returned for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from noisette.errors import PrivacyError
from noisette.run.released_gradients import ReleasedGradients


@pytest.fixture
def parameters() -> dict[str, nn.Parameter]:
    return {f"p{k}": nn.Parameter(torch.zeros(3)) for k in range(7)}


def released(parameters: dict[str, nn.Parameter]) -> ReleasedGradients:
    for p in parameters.values():
        p.grad = torch.ones(3)
    gradients = ReleasedGradients(parameters)
    gradients.hand_over()
    return gradients


def test_what_was_released_zeros_and_nothing_may_stay(parameters: dict[str, nn.Parameter]) -> None:
    gradients = released(parameters)
    gradients.check_no_others()
    parameters["p0"].grad = torch.zeros(3)
    parameters["p1"].grad = None
    gradients.check_no_others()


@pytest.mark.parametrize("value", [1.0, 1e-30, float("nan"), float("inf")])
def test_a_gradient_of_somebody_else_is_refused(parameters: dict[str, nn.Parameter], value: float) -> None:
    gradients = released(parameters)
    parameters["p2"].grad = torch.tensor([0.0, 0.0, value])
    with pytest.raises(PrivacyError, match=r"\.grad of p2 holds a gradient that is not private"):
        gradients.check_no_others()


def test_five_of_many_are_named(parameters: dict[str, nn.Parameter]) -> None:
    for p in parameters.values():
        p.grad = torch.ones(3)
    with pytest.raises(PrivacyError, match=r"p0, p1, p2, p3, p4 and 2 more holds"):
        ReleasedGradients(parameters).check_no_others()


def test_hooks_get_the_released_gradient_and_what_they_return_stays(parameters: dict[str, nn.Parameter]) -> None:
    seen: list[Tensor] = []
    after: list[Tensor | None] = []
    parameters["p0"].register_hook(lambda grad: 2 * grad)
    parameters["p0"].register_hook(seen.append)
    parameters["p0"].register_post_accumulate_grad_hook(lambda p: after.append(p.grad))
    gradients = released(parameters)
    assert parameters["p0"].grad is not None
    assert parameters["p0"].grad.tolist() == seen[0].tolist() == [2.0] * 3
    assert after == [parameters["p0"].grad]
    gradients.check_no_others()


def test_a_frozen_parameter_gets_none(parameters: dict[str, nn.Parameter]) -> None:
    parameters["p0"].requires_grad_(False)
    released(parameters)
    assert parameters["p0"].grad is None
