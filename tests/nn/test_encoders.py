"""The Transformer encoder, compared with its equations, one text and one word at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette.nn import models

WIDTH, HEADS = 6, 2


def normal(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    centred = x - x.mean()
    return centred / (centred.square().mean() + norm.eps).sqrt() * norm.weight + norm.bias


def place(position: int) -> Tensor:
    angles = [position / 10_000 ** (2 * (number // 2) / WIDTH) for number in range(WIDTH)]
    return torch.tensor([math.cos(a) if number % 2 else math.sin(a) for number, a in enumerate(angles)])


def scores_of(model: nn.Module, words: list[Tensor]) -> Tensor:
    """The scores of one text, whose words are all used, of which there is at least one."""
    block, size = model.block, WIDTH // HEADS
    inputs = [word + place(position) for position, word in enumerate(words)]
    in_projection = block.self_attn.in_proj_weight, block.self_attn.in_proj_bias
    parts = [(in_projection[0] @ x + in_projection[1]).split(WIDTH) for x in inputs]
    encoded = []
    for x, (query, _, _) in zip(inputs, parts, strict=True):
        heads = []
        for head in range(HEADS):
            own = slice(head * size, (head + 1) * size)
            weights = torch.stack([query[own] @ key[own] / math.sqrt(size) for _, key, _ in parts]).softmax(0)
            heads.append(sum(w * value[own] for w, (_, _, value) in zip(weights, parts, strict=True)))
        out = block.self_attn.out_proj
        x = normal(x + out.weight @ torch.cat(heads) + out.bias, block.norm1)
        hidden = (block.linear1.weight @ x + block.linear1.bias).clamp(min=0)
        encoded.append(normal(x + block.linear2.weight @ hidden + block.linear2.bias, block.norm2))
    return model.scores.weight @ (sum(encoded) / len(encoded)) + model.scores.bias


def randomised() -> nn.Module:
    model = models.build("encoder", (5, WIDTH), 3)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model


def test_scores_are_those_of_the_equations_for_texts_of_any_length() -> None:
    model, x = randomised(), torch.randn(3, 5, WIDTH)
    x[1, 3:], x[2, 1:] = 0.0, 0.0
    expected = torch.stack([scores_of(model, list(text[:used])) for text, used in zip(x, (5, 3, 1), strict=True)])
    torch.testing.assert_close(model(x), expected)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), expected)


def test_an_empty_text_has_scores_that_are_numbers() -> None:
    model = randomised()
    torch.testing.assert_close(model(torch.zeros(1, 5, WIDTH)), model.scores.bias[None])
    assert torch.isfinite(model.eval()(torch.zeros(2, 5, WIDTH))).all()
