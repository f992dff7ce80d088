"""The engines that need no rule: what they need of the loss, and that they leave nothing behind."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_check import check, measured
from model_cases import Case, Forward, cross_entropy, floats, mlp, parameter, squares
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import PerExampleLoop, Vmap
from noisette.core.clip import Engine
from oracle import clipped_sum

both = pytest.mark.parametrize("engine", [PerExampleLoop(), Vmap(2)], ids=lambda e: type(e).__name__)


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_chunks_change_nothing(size: int) -> None:
    check(Case("mlp", mlp, lambda b: (torch.randn(b, 6),)), Vmap(chunk_size=size), b=7, dtype=torch.float64)


def test_no_more_than_a_chunk_is_in_memory() -> None:
    seen = []
    model = Forward(lambda m, x: (seen.append(m.w), x @ m.w)[1], w=parameter(6, 4))
    measured(model, squares, (torch.randn(10, 6),), 0.5, Vmap(chunk_size=4))
    assert len(seen) == 1 + 3, "the recorded call, then one for each chunk"


@both
def test_operation_without_a_rule(engine: Engine) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(m.w * x) * torch.fft.rfft(m.v), 4) + torch.logcumsumexp(m.v * x, 1)

    case = Case("no rule", lambda: Forward(forward, w=parameter(4), v=parameter(4)), floats(4))
    check(case, engine, b=5, dtype=torch.float64)


class Counting(nn.Module):
    """Its answer depends on how often it was asked, by a buffer."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * self.calls


@both
def test_no_call_changes_a_buffer(engine: Engine) -> None:
    """Each example is computed with the buffers that the model has, none with those of another one."""
    model, x, y = Counting().double(), torch.randn(5, 6).double(), torch.randint(0, 4, (5,))
    clip = PerExampleClip(model, 0.5, engine=engine, capture="eager")
    clip.accumulate(of_class, x, y)
    [total] = clip.pop_sums()
    clip.close()
    assert model.calls == 0
    first = Forward(lambda m, x: m.layer(x), layer=model.layer)
    expected = clipped_sum(first, cross_entropy, (x, y), 0.5).vector
    torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), expected, rtol=1e-10, atol=1e-12)


def of_class(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def test_vmap_says_what_to_use_where_torch_cannot_differentiate() -> None:
    model = Forward(lambda m, x: m.w.expand(len(x), -1).clone().add_(x), w=parameter(6))
    with pytest.raises(PrivacyError, match=r"(?s)torch\.func cannot differentiate .*PerExampleLoop\(\)"):
        measured(model, squares, (torch.randn(3, 6),), 0.5, Vmap())
    x = torch.randn(3, 6)
    found = measured(model, squares, (x,), 0.5, PerExampleLoop())[1]["w"]
    torch.testing.assert_close(found, clipped_sum(model, squares, (x,), 0.5).sums["w"], rtol=1e-5, atol=1e-6)
