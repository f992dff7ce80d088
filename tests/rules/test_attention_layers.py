"""Attention layers and learned parts of attention: every engine against the oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_check import check_thoroughly
from model_cases import Case, Forward, Inputs, floats, parameter


def attending(layer: nn.Module, need_weights: bool = False) -> nn.Module:
    """Self-attention, with the attention weights in the output if they are returned."""

    def forward(m: Forward, x: Tensor) -> Tensor:
        output, weights = m.layer(x, x, x, need_weights=need_weights)
        return torch.cat([output, weights], -1) if need_weights else output

    return Forward(forward, layer=layer)


def across(layer: nn.Module) -> nn.Module:
    """Attention from one sequence to another, both from the input, with padding and a mask."""

    def forward(m: Forward, x: Tensor, padding: Tensor) -> Tensor:
        query, memory = x[:, :3], torch.tanh(x[:, 3:])
        return m.layer(query, memory, memory, key_padding_mask=padding, attn_mask=m.mask)[0]

    return Forward(forward, layer=layer, mask=torch.tensor([[False] * 4, [False, True] * 2, [False] * 3 + [True]]))


def padded(length: int, *shape: int) -> Callable[[int], Inputs]:
    return lambda b: (torch.randn(b, *shape), torch.arange(length) >= torch.randint(1, length + 1, (b, 1)))


def causal(length: int) -> Tensor:
    return torch.ones(length, length).triu(1).bool()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    stack = nn.TransformerEncoder(layer, 2)

    def forward(m: Forward, x: Tensor, padding: Tensor) -> Tensor:
        return m.stack(x, mask=m.mask, src_key_padding_mask=padding)

    return Forward(forward, stack=stack, mask=causal(4))


def decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True)

    def forward(m: Forward, x: Tensor) -> Tensor:
        return m.layer(x[:, :4], torch.tanh(x[:, 4:]), tgt_mask=m.mask, tgt_is_causal=True)

    return Forward(forward, layer=layer, mask=causal(4))


def heads(x: Tensor, n: int = 2) -> Tensor:
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def learned_queries(m: Forward, x: Tensor) -> Tensor:
    """A few latent vectors per example that attend to the sequence."""
    latents = m.latents.expand(len(x), -1, -1)
    return F.scaled_dot_product_attention(heads(latents), heads(m.keys(x)), heads(x)).transpose(1, 2).flatten(2)


def parameters_of_a_layer(m: Forward, x: Tensor) -> Tensor:
    """Learned queries, and a learned memory whose attention weights are returned."""
    latents, memory = (p.expand(len(x), -1, -1) for p in (m.latents, m.memory))
    output, weights = m.layer(m.layer(latents, x, x, need_weights=False)[0], memory, memory)
    return torch.cat([output, weights], -1)


def learned_keys_and_values(m: Forward, x: Tensor) -> Tensor:
    """A learned memory shared by all examples: one for each head, then one for all heads."""
    read = F.scaled_dot_product_attention(heads(m.queries(x)), m.keys, m.values)
    return F.scaled_dot_product_attention(read, m.keys[0], m.values[1])


def learned_bias(m: Forward, x: Tensor) -> Tensor:
    """A bias of each head by relative position, from a table, and one mask for all heads."""
    table = m.table(m.distance).permute(2, 0, 1)
    q, k, v = (heads(part) for part in m.packed(x).chunk(3, -1))
    biased = F.scaled_dot_product_attention(q, k, v, attn_mask=table)
    return F.scaled_dot_product_attention(biased, k, v, attn_mask=m.mask.masked_fill(m.hidden, -torch.inf))


def distances(length: int) -> Tensor:
    place = torch.arange(length)
    return (place[:, None] - place).clamp(-2, 2) + 2


def mha(**settings: object) -> nn.Module:
    return nn.MultiheadAttention(6, 2, **{"batch_first": True} | settings)


CASES = [
    Case("self-attention", lambda: attending(mha()), floats(4, 6)),
    Case("attention weights in the output", lambda: attending(mha(bias=False), True), floats(4, 6)),
    Case("attention across, masked and padded", lambda: across(mha()), padded(4, 7, 6)),
    Case("rows of bias and zeros", lambda: across(mha(add_bias_kv=True, add_zero_attn=True)), padded(4, 7, 6)),
    Case("encoder of two layers", encoder, padded(4, 4, 6)),
    Case(
        "encoder layer, norm first",
        lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, "gelu", batch_first=True, norm_first=True, bias=False),
        floats(4, 6),
    ),
    Case("decoder layer", decoder, floats(7, 6)),
    Case(
        "learned queries",
        lambda: Forward(learned_queries, latents=parameter(1, 3, 6), keys=nn.Linear(6, 6)),
        floats(4, 6),
    ),
    Case(
        "parameters of a layer",
        lambda: Forward(parameters_of_a_layer, layer=mha(), latents=parameter(1, 3, 6), memory=parameter(1, 3, 6)),
        floats(4, 6),
    ),
    Case(
        "learned keys and values",
        lambda: Forward(
            learned_keys_and_values, queries=nn.Linear(6, 6), keys=parameter(2, 5, 3), values=parameter(2, 5, 3)
        ),
        floats(4, 6),
    ),
    Case(
        "learned bias of positions",
        lambda: Forward(
            learned_bias,
            packed=nn.Linear(6, 18),
            table=nn.Embedding(5, 2),
            distance=distances(4),
            mask=parameter(4, 4),
            hidden=causal(4),
        ),
        floats(4, 6),
    ),
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_attention_is_clipped_as_the_oracle_does(case: Case) -> None:
    check_thoroughly(case)
