"""``.grad`` holds what a release wrote, or what the user's hooks returned for it."""

import pytest
import torch
from torch import Tensor, nn

from noisette import BoundedSum, GaussianRelease
from noisette.core.noise import SecretKey


@pytest.fixture
def parameters():
    return {f"p{k}": nn.Parameter(torch.zeros(3)) for k in range(7)}


def released(parameters: dict[str, nn.Parameter]) -> GaussianRelease:
    """A release of ones, with noise too small to matter."""
    release, held = GaussianRelease(SecretKey(), 1e-9, 1), tuple(parameters.values())
    names = {id(p): name for name, p in parameters.items()}
    release([BoundedSum(held, tuple(map(torch.ones_like, held)), 1.0)], names, step=0)
    return release


def test_hooks_get_the_released_gradient_and_what_they_return_stays(parameters):
    seen: list[Tensor] = []
    after: list[Tensor | None] = []
    parameters["p0"].register_hook(lambda grad: 2 * grad)
    parameters["p0"].register_hook(seen.append)
    parameters["p0"].register_post_accumulate_grad_hook(lambda p: after.append(p.grad))
    release = released(parameters)
    torch.testing.assert_close(seen, [torch.full((3,), 2.0)])
    assert parameters["p0"].grad is seen[0]
    assert after == [parameters["p0"].grad]
    release.check_no_others(parameters)


def test_a_frozen_parameter_gets_none(parameters):
    parameters["p0"].requires_grad_(False)
    released(parameters)
    assert parameters["p0"].grad is None
