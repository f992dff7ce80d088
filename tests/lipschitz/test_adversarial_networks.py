"""Gradient ascent over inputs, labels and weights of whole networks: no gradient may exceed its bound.

Random samples reach about 0.7 of a bound, so they cannot tell a correct bound from one that is a third too small.
Ascent reaches the bound, and exceeds it where a loss understates its constant.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lipschitz_networks import NETWORKS, X0, dense
from noisette import LipschitzBound
from noisette.nn.lipschitz import TauCrossEntropy

F = nn.functional
TAU = 20.0


def ratio(bound: LipschitzBound, x: Tensor, label: int, target: str) -> Tensor:
    """The ratio of one example's gradient norm to its bound, for one parameter, as a differentiable function."""
    loss = F.cross_entropy(TAU * bound.model(x), torch.tensor([label])) / TAU
    [gradient] = torch.autograd.grad(loss, [bound.parameters[target]], create_graph=True)
    return gradient.norm() / bound.sensitivities()[target]


def largest_ratio(model: nn.Module, shape: tuple[int, ...], target: str, steps: int = 250, classes: int = 3) -> float:
    """The largest ratio found for one parameter, over the input, the label and all weights in their sets."""
    bound = LipschitzBound(model, loss=TauCrossEntropy(TAU), input_shape=shape, slack=0.0)
    x = torch.randn(1, *shape, dtype=torch.float64).requires_grad_()
    ascent = torch.optim.Adam([x, *bound.parameters.values()], lr=0.05, maximize=True)
    best, best_label = 0.0, 0
    for step in range(steps):
        label = step * classes // steps if step < steps // 2 else best_label
        reached = ratio(bound, x, label, target)
        if float(reached.detach()) > best:
            best, best_label = float(reached.detach()), label
        ascent.zero_grad()
        reached.backward()
        ascent.step()
        with torch.no_grad():
            x.mul_(X0 / x.norm())
        bound.after_step()
    bound.close()
    return best


every_network = pytest.mark.parametrize(("make", "shape"), NETWORKS.values(), ids=NETWORKS)


@every_network
@pytest.mark.parametrize(("steps", "seeds"), [(40, [1]), pytest.param(400, [0, 1, 2], marks=pytest.mark.slow)])
def test_no_search_exceeds_a_bound(make, shape, steps, seeds) -> None:
    for seed in seeds:
        torch.manual_seed(seed)
        for target, _ in make().named_parameters():
            assert largest_ratio(make().double(), shape, target, steps=steps) <= 1 + 1e-9


def test_the_bounds_of_a_dense_network_are_reached() -> None:
    for target, _ in dense(6, 6, 6, 3).named_parameters():
        reached = []
        for seed in range(2):
            torch.manual_seed(seed)
            reached.append(largest_ratio(dense(6, 6, 6, 3), (6,), target, steps=200))
        assert max(reached) >= 0.99


def test_the_search_finds_a_loss_that_understates_its_constant(monkeypatch) -> None:
    monkeypatch.setattr(TauCrossEntropy, "lipschitz", lambda self, logit_bound=None: 1.0)
    torch.manual_seed(0)
    assert largest_ratio(dense(6, 6, 6, 3), (6,), "5.weight", steps=100) > 1.1
