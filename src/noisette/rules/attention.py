"""Embedding tables, each id of which adds its gradient to one row, and the decomposition of attention layers."""

import types

import torch
from torch import Tensor

from noisette.core.forms import DerivedWeight, ExampleGradients, Examples, Rows, derivation, rewrite, rule

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
    """G[id_t] += dy_t, but for the padding row."""
    if max_norm is not None:
        raise ValueError("max_norm changes the rows that a batch looks up, without noise; leave it out")
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq counts ids over the whole batch and so mixes examples; leave it out")
    ids = examples.first(input).reshape(examples.count, -1)
    return touched_rows(ids, examples.sequences(dy), weight, padding_idx)


@rewrite(F.embedding_bag)
def rows_in_bags(
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
    """Bags (n, t) of ids, or ids (t,) of which each bag begins at an offset: rows of the table, and sums over them."""
    if scale_grad_by_freq:
        return NotImplemented
    rows = F.embedding(input, weight, None, max_norm, norm_type)
    kept = torch.ones_like(input) if padding_idx is None else (input != padding_idx % len(weight)).to(input.dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if offsets is not None:
        starts = offsets[:-1] if include_last_offset else offsets
        at = torch.arange(len(input), device=input.device)
        ends = torch.cat([offsets[1:], offsets.new_full((0 if include_last_offset else 1,), len(input))])
        kept = ((at >= starts.unsqueeze(1)) & (at < ends.unsqueeze(1))) * kept
        rows = rows.unsqueeze(0)
    if mode == "max":
        found = torch.where(kept.unsqueeze(-1) > 0, rows, -torch.inf).max(1).values
        return torch.where(kept.sum(1, keepdim=True) > 0, found, 0)
    total = (kept.unsqueeze(-1) * rows).sum(1)
    return total / kept.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else total


def touched_rows(ids: Tensor, rows: Tensor, weight: Tensor, padding_idx: int | None) -> Rows:
    """Gradients ``rows`` (b, t, i) of the rows ``ids`` (b, t) of a table, without those of the padding row."""
    if padding_idx is not None:
        padding = ids == padding_idx % weight.shape[0]
        ids, rows = ids.masked_fill(padding, -1), rows.masked_fill(padding.unsqueeze(2), 0)
    return Rows(ids, rows, weight.shape)


@derivation(torch.nn.functional.embedding)
def embedded_rows(weight: DerivedWeight, form: ExampleGradients) -> list[tuple[Tensor, ExampleGradients]] | None:
    """Gradients of an embedding table looked up by ids that are the same for every example, such as positions.

    Returns ``None`` if the table is a derived weight itself.
    """
    ids, table = weight.args[0], weight.args[1]
    padding_idx = weight.args[2] if len(weight.args) > 2 else weight.kwargs.get("padding_idx")
    if not isinstance(table, torch.nn.Parameter):
        return None
    gradients = form.explicit()
    each = ids.expand(len(gradients), *ids.shape).flatten(1)
    return [(table, touched_rows(each, gradients.reshape(*each.shape, -1), table, padding_idx))]


# The layer in operations of torch, each of which the recorder sees: torch would hand the layer as a whole to it.
_multi_head_attention = types.FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
rewrite(F.multi_head_attention_forward, always=True)(_multi_head_attention)
