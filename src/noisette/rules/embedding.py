"""Embedding tables: each position adds its gradient to one row."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.rules._examples import Examples
from noisette.rules._registry import rule
from noisette.rules.gradients import ExampleGradients, Rows


@rule(torch.nn.functional.embedding, operand="weight")
def embedding_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> ExampleGradients:
    """G[id_t] += dy_t; the padding row gets nothing."""
    if max_norm is not None:
        raise ValueError("max_norm rewrites the rows that a batch touches, which no noise covers; leave it out")
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq counts ids over the whole batch and so mixes examples; leave it out")
    ids = examples.first(input).reshape(examples.count, -1)
    return touched_rows(ids, examples.sequences(dy), weight, padding_idx)


def touched_rows(ids: Tensor, rows: Tensor, weight: Tensor, padding_idx: int | None) -> Rows:
    """Rows of ``weight`` that these ids (b, t) touch, with the padding row left out."""
    if padding_idx is not None:
        padding = ids == padding_idx % weight.shape[0]
        ids, rows = ids.masked_fill(padding, -1), rows.masked_fill(padding.unsqueeze(2), 0)
    return Rows(ids, rows, weight.shape)
