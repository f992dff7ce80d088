"""The engines that need no rule: what they need of the loss, and that they leave nothing behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from engine_check import check, measured
from model_cases import Case, Forward, floats, parameter, squares
from noisette import PrivacyError
from noisette.clipping.engines import PerExampleLoop, Vmap
from noisette.core.clip import Engine
from oracle import clipped_sum

both = pytest.mark.parametrize("engine", [PerExampleLoop(), Vmap(2)], ids=lambda e: type(e).__name__)


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


def test_vmap_says_what_to_use_where_torch_cannot_differentiate() -> None:
    model = Forward(lambda m, x: m.w.expand(len(x), -1).clone().add_(x), w=parameter(6))
    with pytest.raises(PrivacyError, match=r"(?s)torch\.func cannot differentiate .*PerExampleLoop\(\)"):
        measured(model, squares, (torch.randn(3, 6),), 0.5, Vmap())
    x = torch.randn(3, 6)
    found = measured(model, squares, (x,), 0.5, PerExampleLoop())[1]["w"]
    torch.testing.assert_close(found, clipped_sum(model, squares, (x,), 0.5).sums["w"], rtol=1e-5, atol=1e-6)
