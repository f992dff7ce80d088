"""The walk through the autograd graph, on models drawn at random, against the graph that autograd itself follows."""

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils.checkpoint import checkpoint

from forward_pass import recorded
from noisette.core.backward import search, visit_output_gradients
from noisette.core.forms import Use
from noisette.core.trace import Recording

F = nn.functional
WIDTH, TIME = 4, 3
Step = Callable[["Drawn", Tensor, Tensor], Tensor]  # the model, a value, another value -> a value of the same shape


class Drawn(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.w = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.v = nn.Parameter(torch.randn(WIDTH))
        self.packed = nn.Parameter(torch.randn(3 * WIDTH, WIDTH))
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.choice = random.Random(seed)
        self.steps = self.choice.choices(STEPS, k=self.choice.randint(2, 8))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for step in self.steps:
            value = values[-1] if self.choice.random() < 0.7 else self.choice.choice(values)
            values.append(step(self, value, self.choice.choice(values)))
        return values[-1] if self.choice.random() < 0.7 else values[-1] + values[-2]


def written(m: Drawn, x: Tensor, y: Tensor) -> Tensor:
    out = x * 1.0
    out[:, 0] = F.linear(y[:, 1], m.w)
    return out


def in_place(m: Drawn, x: Tensor, y: Tensor) -> Tensor:
    return (x @ m.w).add_(m.v).relu_()


def through_view(m: Drawn, x: Tensor, y: Tensor) -> Tensor:
    out = x * 1.0
    view = out[:, :1]
    view.mul_(2.0)
    return out * m.v + view


def split(m: Drawn, x: Tensor, y: Tensor) -> Tensor:
    q, k, v = F.linear(x, m.packed).chunk(3, -1)
    return q * torch.sigmoid(k) + v


def unread(m: Drawn, x: Tensor, y: Tensor) -> Tensor:
    """A use that the losses do not depend on."""
    F.linear(y, m.w)
    return x.tanh()


STEPS: list[Step] = [
    lambda m, x, y: F.linear(x, m.w, m.v),
    lambda m, x, y: x.tanh(),
    lambda m, x, y: x + torch.tanh(y @ m.w),
    lambda m, x, y: x + y,
    lambda m, x, y: (x @ m.w).tanh() @ m.w.T,
    lambda m, x, y: F.linear(x, m.packed[WIDTH : 2 * WIDTH]),
    lambda m, x, y: F.linear(x, torch.tanh(m.w) + m.w),
    lambda m, x, y: x * m.v,
    lambda m, x, y: x.detach() * m.v,
    lambda m, x, y: m.token.expand_as(x) * y.sigmoid(),
    lambda m, x, y: torch.cat([m.token.expand(len(x), -1, -1), x], 1)[:, :TIME],
    lambda m, x, y: torch.stack([x, m.token.expand_as(x)]).sum(0),
    lambda m, x, y: m.lstm(x)[0],
    lambda m, x, y: m.lstm(x)[1][0].transpose(0, 1) + y,
    lambda m, x, y: torch.stack((x @ m.w).unbind(1)[::-1], 1),
    lambda m, x, y: torch.where(x > 0, y, m.v),
    lambda m, x, y: checkpoint(lambda t: F.linear(F.linear(t, m.w).relu(), m.w), x, use_reentrant=False),
    written,
    in_place,
    through_view,
    split,
    unread,
]


def record(model: Drawn, seed: int) -> tuple[Tensor, Recording, dict[str, Tensor]]:
    x = torch.randn(1 + seed % 3, TIME, WIDTH, dtype=torch.float64, requires_grad=True)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) if seed % 4 else model(x) * model(0.5 * x)).square().sum()

    forward, parameters = recorded(model, loss, x)
    return forward.losses, forward.recording, parameters


def descendants(node: Node, known: dict[Node, frozenset[Node]]) -> frozenset[Node]:
    if node not in known:
        children = [child for child, _ in node.next_functions if child is not None]
        known[node] = frozenset(children).union(*(descendants(child, known) for child in children))
    return known[node]


def gradient_at(losses: Tensor, use: Use) -> list[Tensor | None]:
    return [
        None
        if edge is None
        else torch.autograd.grad(losses, [edge], torch.ones_like(losses), retain_graph=True, allow_unused=True)[0]
        for edge in use.outputs
    ]


@pytest.mark.parametrize("seed", range(25))
def test_the_walk_finds_what_autograd_reaches_and_visits_each_use_once_with_its_gradient(seed: int) -> None:
    losses, recording, parameters = record(Drawn(seed), seed)
    graph = search(losses, recording.uses, parameters)
    below = descendants(losses.grad_fn, {}) | {losses.grad_fn}
    nodes = {edge.node for use in recording.uses for edge in use.edges}
    known: dict[Node, frozenset[Node]] = {}
    assert graph.uncovered == ()
    assert graph.above == {node for node in nodes & below if descendants(node, known) & nodes & below}
    visits: dict[int, list[Tensor | None]] = {}

    def visit(k: int, dy: Tensor | tuple[Tensor | None, ...]) -> None:
        assert k not in visits
        visits[k] = list(dy) if isinstance(dy, tuple) else [dy]

    uses = dict(enumerate(recording.uses))
    visit_output_gradients(losses, uses, graph, visit, retain_graph=True)
    for k, use in uses.items():
        expected = gradient_at(losses, use)
        if all(dy is None for dy in expected):
            assert k not in visits
            continue
        for dy, found in zip(expected, visits[k], strict=True):
            assert (dy is None) == (found is None)
            assert dy is None or found is None or torch.allclose(dy, found, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_a_penalty_on_a_parameter_is_uncovered(seed: int) -> None:
    model = Drawn(seed)
    losses, recording, parameters = record(model, seed)
    penalised = losses + model.w.square().sum() + model.lstm.weight_hh_l0.abs().sum()
    assert search(penalised, recording.uses, parameters).uncovered == ("lstm.weight_hh_l0", "w")
