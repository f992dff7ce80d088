"""Models and losses that try to carry values from one example to another past ``vmap``: refused, or without effect.

One record is replaced by an extreme one. The released sum may move by at most twice the bound, and the clipped
contribution of no other example may change: with a bound above all norms the rest of the sum stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError

B, C = 6, 1.0


class Model(nn.Module):
    """A layer, a table, a buffer, and a function of them."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.table = nn.Embedding(5, 4)
        self.register_buffer("state", torch.zeros(4))
        self.kept: list[Tensor] = []
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def released(make: Callable[[], nn.Module], loss: Callable[..., Tensor], batches: list[Tensor]) -> list[list[Tensor]]:
    """The sums of some batches, one after the other."""
    torch.manual_seed(0)
    clip = PerExampleClip(make(), C)
    clip.before_first_batch()
    sums = []
    try:
        for k, batch in enumerate(batches):
            torch.manual_seed(k)
            clip.accumulate(loss, batch)
            sums.append([g.clone() for g in clip.pop_sums()[0].grads])
    finally:
        clip.close()
    return sums


def neighbours() -> tuple[list[Tensor], list[Tensor]]:
    """Two batches each; in the first one a record differs, in the second one all are equal."""
    torch.manual_seed(1)
    first, second = torch.randn(B, 4), torch.randn(B, 4)
    other = first.clone()
    other[2] = 1e3
    return [first, second], [other, second]


def carries_detached(m: Model, x: Tensor) -> Tensor:
    last, m.kept = m.kept, [x.detach() * 2]
    return m.layer(x + sum(last, torch.zeros(4)))


def carries_with_graph(m: Model, x: Tensor) -> Tensor:
    last, m.kept = m.kept, [m.layer(x).tanh()]
    return m.layer(x) * (last[0] if last else torch.ones(2))


def carries_through_a_buffer(m: Model, x: Tensor) -> Tensor:
    y = m.layer(x + m.state)
    m.state = x[0].detach()
    return y


def carries_an_unused_tensor(m: Model, x: Tensor) -> Tensor:
    """Kept as it was made, by an operation whose output no other operation of that call takes."""
    last, m.kept = m.kept, [x.detach().exp().clamp(max=2)]
    return F.linear(x, m.layer.weight, m.layer.bias) + sum(last, torch.zeros(4)).sum()


def carries_the_argument(m: Model, x: Tensor) -> Tensor:
    last, m.kept = m.kept, [x]
    return m.layer(last[0] if last else x)


def branches_on_any(m: Model, x: Tensor) -> Tensor:
    return m.layer(x) - (100.0 if torch._is_any_true(x > 100) else 0.0)


def reads_a_text(m: Model, x: Tensor) -> Tensor:
    return m.layer(x) - (100.0 if "e+03" in repr(x) or "1000" in f"{x}" else 0.0)


def writes_a_buffer(m: Model, x: Tensor) -> Tensor:
    m.state.copy_(x[0])
    return m.layer(x + m.state)


def writes_a_weight(m: Model, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.layer.bias.add_(x.mean())
    return m.layer(x)


def rescales_a_table(m: Model, x: Tensor) -> Tensor:
    looked_up = F.embedding((x > 0).long(), m.table.weight, max_norm=0.1)
    return m.layer(looked_up.sum(1))


def writes_a_made_constant(m: Model, x: Tensor) -> Tensor:
    shared = torch.zeros(4)
    shared += x[0]
    return m.layer(x + shared)


def centres(m: Model, x: Tensor) -> Tensor:
    return m.layer(x - x.mean(0))


def keeps_and_returns(m: Model, x: Tensor) -> Tensor:
    """A loss that gives back the loss of the last call."""
    last, m.kept = m.kept, [m.layer(x)]
    return last[0] if last else m.kept[0]


FORWARDS = [
    *(carries_detached, carries_with_graph, carries_through_a_buffer, carries_an_unused_tensor, carries_the_argument),
    *(
        branches_on_any,
        reads_a_text,
        writes_a_buffer,
        writes_a_weight,
        rescales_a_table,
        writes_a_made_constant,
        centres,
    ),
    keeps_and_returns,
]
HARMLESS = {reads_a_text, writes_a_made_constant, centres}


def of_model(m: nn.Module, x: Tensor) -> Tensor:
    return m(x).square().sum()


@pytest.mark.filterwarnings("ignore::noisette.clipping.engines.OneByOneWarning")  # of branches_on_any
@pytest.mark.parametrize("forward", FORWARDS, ids=lambda forward: forward.__name__)
def test_no_value_reaches_another_example(forward: Callable[[Any, Tensor], Tensor]) -> None:
    one, other = neighbours()
    try:
        before = released(lambda: Model(forward), of_model, one)
        after = released(lambda: Model(forward), of_model, other)
    except PrivacyError:
        assert forward not in HARMLESS
        return
    moved = [
        torch.cat([(p - q).flatten() for p, q in zip(*pair, strict=True)]) for pair in zip(before, after, strict=True)
    ]
    assert float(moved[0].norm()) <= 2 * C * (1 + 1e-5)
    assert not moved[1].any()  # the second batch is the same


@pytest.mark.parametrize("forward", sorted(HARMLESS, key=lambda forward: forward.__name__), ids=lambda f: f.__name__)
def test_harmless_models_are_taken(forward: Callable[[Any, Tensor], Tensor]) -> None:
    assert len(released(lambda: Model(forward), of_model, neighbours()[0])) == 2


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
@pytest.mark.parametrize(
    "carries", [carries_detached, carries_with_graph, carries_the_argument, keeps_and_returns], ids=lambda f: f.__name__
)
def test_no_value_reaches_the_example_that_is_computed_next(carries: Callable[[Any, Tensor], Tensor]) -> None:
    """A branch on values makes the loss one that is called with one example after the other."""
    begun: list[int] = []

    def forward(m: Model, x: Tensor) -> Tensor:
        return (carries(m, x) if len(begun) > B else m.layer(x)) * (1.0 if float(x.sum()) > 0 else 0.5)

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        begun.append(1)
        return of_model(m, x)

    with pytest.raises(PrivacyError, match="an earlier call has computed from other examples"):
        released(lambda: Model(forward), loss, neighbours()[0])


@pytest.mark.filterwarnings("ignore::noisette.OneByOneWarning")
def test_a_loss_that_writes_into_its_arguments_leaves_the_microbatch() -> None:
    def loss(m: nn.Module, x: Tensor) -> Tensor:
        scale = 1.0 if float(x.sum()) > 0 else 0.5
        return m(x.div_(255)).square().sum() * scale

    [batch, _], _ = neighbours()
    before = batch.clone()
    first, second = released(lambda: Model(lambda m, x: m.layer(x)), loss, [batch, batch])
    assert torch.equal(batch, before)
    for one, other in zip(first, second, strict=True):
        torch.testing.assert_close(one, other)


def test_a_state_that_begins_anew_in_each_call_is_taken() -> None:
    def forward(m: Model, x: Tensor) -> Tensor:
        m.kept = [torch.zeros(4)]
        for _ in range(3):
            m.kept.append(m.kept[-1] + x.sum(0))
        return m.layer(m.kept[-1])[None]

    assert len(released(lambda: Model(forward), of_model, neighbours()[0])) == 2
