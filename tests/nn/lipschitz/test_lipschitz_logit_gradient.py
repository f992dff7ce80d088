"""Gradients clipped on their way back."""

from __future__ import annotations

import math
from contextlib import closing

import pytest
import torch
from torch import nn

from model_cases import squares
from noisette import PerExampleClip
from noisette.clipping.engines import BookKeeping, MultiLoss, TwoPass
from noisette.lipschitz import NormBound
from noisette.nn.lipschitz import BoundedInput, ClipLogitGrad, SpectralLinear


def test_each_example_is_clipped_on_its_own() -> None:
    x = torch.randn(40, 3, 4, dtype=torch.float64, requires_grad=True)
    back = torch.randn_like(x) * torch.logspace(-3, 3, 40, dtype=torch.float64).view(-1, 1, 1)
    output = ClipLogitGrad(0.5)(x)
    assert torch.equal(output, x)
    [found] = torch.autograd.grad(output, x, back)
    expected = torch.stack([row if row.norm() <= 0.5 else row * 0.5 / row.norm() for row in back])
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
def test_a_gradient_that_is_not_finite_becomes_zeros_and_touches_no_other(bad) -> None:
    x = torch.zeros(3, 2, requires_grad=True)
    back = torch.tensor([[0.1, 0.2], [bad, 1.0], [3e37, 4e37]])
    [found] = torch.autograd.grad(ClipLogitGrad(5.0)(x), x, back)
    torch.testing.assert_close(found, torch.tensor([[0.1, 0.2], [0.0, 0.0], [3.0, 4.0]]))


def test_outputs_of_one_number_and_batches_of_none_are_taken() -> None:
    x = torch.zeros(2, requires_grad=True)
    assert torch.autograd.grad(ClipLogitGrad(0.5)(x), x, torch.tensor([3.0, -0.2]))[0].tolist() == pytest.approx(
        [0.5, -0.2]
    )
    none = torch.zeros(0, 3, requires_grad=True)
    assert torch.autograd.grad(ClipLogitGrad(0.5)(none).sum(), none)[0].shape == (0, 3)


def test_the_bound_is_the_smaller_of_what_arrives_and_the_clip() -> None:
    layer = ClipLogitGrad(0.1)
    assert layer.bound_forward(NormBound(3.0, (10,))) == NormBound(3.0, (10,))
    # Losses of slope sqrt(2), of which the mean over 100 is taken behind: 0.1 / 100, not sqrt(2) / 100.
    assert layer.bound_backward(NormBound(3.0, (10,)), math.sqrt(2))[0] / 100 == pytest.approx(0.001)
    assert layer.bound_backward(NormBound(3.0, (10,)), 0.05) == (0.05, {})


def test_no_loss_however_steep_moves_a_weight_further_than_the_bound() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(BoundedInput(2.0), SpectralLinear(5, 3), ClipLogitGrad(0.3)).double()
    [bound] = model[1].bound_backward(NormBound(2.0, (5,)), 0.3)[1].values()
    for size in (1e-3, 1.0, 1e6):
        loss = (size * model(torch.randn(1, 5, dtype=torch.float64))).pow(3).sum()
        [gradient] = torch.autograd.grad(loss, model[1].weight)
        assert float(gradient.norm()) <= bound * (1 + 1e-9)


def test_a_second_backward_pass_is_refused() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    output = ClipLogitGrad(0.5)(x)
    torch.autograd.grad(output.sum(), x, retain_graph=True)
    with pytest.raises(RuntimeError, match="second backward pass"):
        torch.autograd.grad(output.sum(), x)


def test_the_derivative_of_a_clipped_gradient_is_that_of_its_formula() -> None:
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    def clipped(back: torch.Tensor) -> torch.Tensor:
        return back * (0.5 / back.norm(dim=1, keepdim=True)).clamp(max=1)

    [found] = torch.autograd.grad(ClipLogitGrad(0.5)(x.square()).square().sum(), x, create_graph=True)
    expected = clipped(2 * x.square()) * 2 * x
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), x), torch.autograd.grad(expected.square().sum(), x)
    )


@pytest.mark.parametrize("engine", [BookKeeping(), TwoPass(), MultiLoss()], ids=lambda e: type(e).__name__)
def test_per_example_clipping_that_takes_several_passes_is_refused(engine) -> None:
    model = nn.Sequential(SpectralLinear(4, 3), ClipLogitGrad(0.01)).double()
    with closing(PerExampleClip(model, 1e-3, engine=engine)) as clip:
        losses = squares(model, torch.randn(6, 4, dtype=torch.float64))
        with pytest.raises(RuntimeError, match="PerExampleClip does without it"):
            clip.backward(losses)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan])
def test_a_clip_outside_of_its_domain_is_refused(clip) -> None:
    with pytest.raises(ValueError, match="clip"):
        ClipLogitGrad(clip)
