"""Embedding tables, one row for each id or one for each bag of ids: a position adds its gradient to one row."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.gradients.rules.elementwise import reduced
from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import ExampleGradients, Rows
from noisette.gradients.rules.registry import rewrite, rule

F = torch.nn.functional


@rule(F.embedding, operand="weight")
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
    _require_rows_apart(max_norm, scale_grad_by_freq)
    ids = examples.first(input).reshape(examples.count, -1)
    return touched_rows(ids, examples.sequences(dy), weight, padding_idx)


@rewrite(F.embedding)
def dense_embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor:
    """The same rows without sparse gradients, for noise reaches every row of the table."""
    if not sparse:
        return NotImplemented
    return F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse=False)


@rule(F.embedding_bag, operand="weight")
def embedding_bag_weight(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> ExampleGradients:
    """G[id_t] += share_t dy; in mode "max", each feature goes to the id it was taken from."""
    _require_rows_apart(max_norm, scale_grad_by_freq)
    if examples.axis:
        raise ValueError(f"its bags are the first axis of the output, and the examples are on axis {examples.axis}")
    places = _places(input, offsets, include_last_offset)
    ids = F.pad(input.flatten(), (0, 1), value=-1)[places]
    if padding_idx is not None:
        ids = ids.masked_fill(ids == padding_idx % weight.shape[0], -1)
    counted = (ids >= 0).to(dy.dtype)
    if mode == "max":
        values = weight[ids].masked_fill(counted.unsqueeze(2) == 0, -torch.inf)
        taken = torch.zeros_like(values).scatter_(1, values.argmax(1, keepdim=True), 1)
        shares = taken * counted.unsqueeze(2)
    else:
        shares = counted / counted.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else counted
        if per_sample_weights is not None:
            shares = shares * F.pad(per_sample_weights.flatten(), (0, 1))[places]
        shares = shares.unsqueeze(2)
    rows = examples.first(shares * dy.unsqueeze(1))
    return Rows(
        examples.first(ids).reshape(examples.count, -1),
        rows.reshape(examples.count, -1, weight.shape[1]),
        weight.shape,
    )


def _places(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Where the ids of each bag stand, shape (bags, t), -1 behind the end of a bag."""
    if offsets is None:
        return torch.arange(input.numel(), device=input.device).view(input.shape)
    if not include_last_offset:
        offsets = torch.cat([offsets, offsets.new_tensor([input.numel()])])
    starts, ends = offsets[:-1], offsets[1:]
    longest = max(int((ends - starts).max()), 1)
    places = starts.unsqueeze(1) + torch.arange(longest, device=input.device)
    return places.masked_fill(places >= ends.unsqueeze(1), -1)


@rule(F.embedding_bag, operand="per_sample_weights")
def embedding_bag_shares(
    examples: Examples,
    dy: Tensor,
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> ExampleGradients:
    """G_t = <dy, row of id_t>."""
    assert per_sample_weights is not None
    _require_rows_apart(max_norm, scale_grad_by_freq)
    if offsets is not None:
        raise ValueError("bags of different lengths share no weights; use bags of one length, or weights from data")
    gradients = torch.einsum("bi,bti->bt", dy, weight[input])
    if padding_idx is not None:
        gradients = gradients.masked_fill(input == padding_idx % weight.shape[0], 0)
    return reduced(examples, gradients, per_sample_weights)


@rewrite(F.embedding_bag)
def dense_embedding_bag(
    input: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The same bags without sparse gradients, for noise reaches every row of the table."""
    if not sparse:
        return NotImplemented
    return F.embedding_bag(
        input,
        weight,
        offsets,
        max_norm,
        norm_type,
        scale_grad_by_freq,
        mode,
        False,
        per_sample_weights,
        include_last_offset,
        padding_idx,
    )


def _require_rows_apart(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if max_norm is not None:
        raise ValueError("max_norm rewrites the rows that a batch touches, which no noise covers; leave it out")
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq counts ids over the whole batch and so mixes examples; leave it out")


def touched_rows(ids: Tensor, rows: Tensor, weight: Tensor, padding_idx: int | None) -> Rows:
    """Rows of ``weight`` that these ids (b, t) touch, with the padding row left out."""
    if padding_idx is not None:
        padding = ids == padding_idx % weight.shape[0]
        ids, rows = ids.masked_fill(padding, -1), rows.masked_fill(padding.unsqueeze(2), 0)
    return Rows(ids, rows, weight.shape)
