"""The attention layer: its weights are used by linear layers alone, and what they give is exact."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_check import check
from forward_pass import recorded_losses
from model_cases import Case, Forward, floats
from noisette.clipping.engines import BookKeeping

B, E = 3, 6
CAUSAL = torch.ones(4, 4).triu(1).bool()


def itself(m: Forward, x: Tensor) -> Tensor:
    return m.layer(x, x, x, need_weights=False, attn_mask=CAUSAL, is_causal=True)[0]


def memory(m: Forward, x: Tensor) -> Tensor:
    other = x.sin()
    return m.layer(x, other, other)[0]


def of_three(m: Forward, x: Tensor) -> Tensor:
    output, weights = m.layer(x, x.sin(), x.cos(), average_attn_weights=False)
    return output * weights.sum()


def without_a_batch(m: Forward, x: Tensor) -> Tensor:
    x = x.flatten(0, 1)
    return m.layer(x, x, x, key_padding_mask=torch.arange(len(x)) > 2)[0]


LAYERS: list[tuple[Callable[..., Tensor], dict[str, Any]]] = [
    (itself, {}),
    (memory, {"bias": False}),
    (itself, {"batch_first": False}),
    (of_three, {"add_bias_kv": True, "add_zero_attn": True}),
    (without_a_batch, {"kdim": 6, "vdim": 6}),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("forward", "settings"), LAYERS)
def test_each_weight_is_that_of_a_linear_layer(forward, settings: dict[str, Any]) -> None:
    def make() -> nn.Module:
        return Forward(forward, layer=nn.MultiheadAttention(E, 2, **{"batch_first": True} | settings))

    inputs = floats(*((1, 4, E) if settings.get("batch_first", True) else (4, 1, E)))
    case = Case("", make, inputs, lambda model, x: torch.stack([model(one).square().sum() for one in x]))
    check(case, BookKeeping(), b=B, dtype=torch.float64)
    found = recorded_losses(make(), lambda model, x: model(x[0]).square().sum(), *inputs(B))
    assert {use.operation for use in found.recording.uses if any(w.dim() == 2 for w in use.weights)} == {F.linear}


def test_what_torch_refuses_is_refused_in_its_words() -> None:
    model = Forward(lambda m, x: m.layer(x, x, x, attn_mask=torch.zeros(1, 4))[0], layer=nn.MultiheadAttention(E, 2))
    with pytest.raises(RuntimeError, match="The shape of the 2D attn_mask"):
        recorded_losses(model, lambda model, x: model(x[0]).square().sum(), torch.randn(B, 4, 1, E))
