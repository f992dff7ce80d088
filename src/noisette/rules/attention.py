"""Embedding tables, each id of which adds its gradient to one row, and the decomposition of attention layers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

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


@rewrite(F.embedding)
def dense_embedding(*args: Any, **kwargs: Any) -> Any:
    """Without sparse gradients, because noise is added to every row of the table."""
    arguments: dict[str, Any] = inspect.signature(F.embedding).bind(*args, **kwargs).arguments
    if not arguments.get("sparse"):
        return NotImplemented
    arguments["sparse"] = False
    return F.embedding(**arguments)


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


@rewrite(F.multi_head_attention_forward, always=True)
def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The layer as linear projections and softmax(q k^T / sqrt(d) + mask) v in each head.

    In every step the examples are on the first axis, whatever the order of axes in the arguments. Axes of q, k and v:
    (example, head, position, feature).
    """
    batched = query.dim() == 3
    packed = None if use_separate_proj_weight else in_proj_weight
    separate = (q_proj_weight, k_proj_weight, v_proj_weight)
    q, k, v = _projections(*_batch_first(query, key, value, batched), packed, separate, in_proj_bias)
    b = q.shape[0]
    if bias_k is not None and bias_v is not None:
        k, v = torch.cat([k, bias_k.expand(b, -1, -1)], 1), torch.cat([v, bias_v.expand(b, -1, -1)], 1)
    q, k, v = (x.unflatten(-1, (num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    k = k if static_k is None else static_k.unflatten(0, (b, num_heads))
    v = v if static_v is None else static_v.unflatten(0, (b, num_heads))
    fits = not is_causal if attn_mask is None else attn_mask.shape[-2:] == (query.shape[0], key.shape[0])
    if not fits or k.shape != v.shape:
        return NotImplemented  # the operation raises its own error for such arguments
    if add_zero_attn:
        k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))

    is_causal = is_causal and key_padding_mask is None and not need_weights
    mask = None if is_causal else _joint_mask(attn_mask, key_padding_mask, b, q)
    if mask is not None and (extra := int(bias_k is not None) + int(add_zero_attn)):
        mask = F.pad(mask, (0, extra))
    dropout_p = dropout_p if training else 0.0
    if need_weights:
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        attention = F.dropout(F.softmax(scores if mask is None else scores + mask, -1), dropout_p)
        output = attention @ v
        attention = attention.mean(1) if average_attn_weights else attention
        attention = attention if batched else attention.squeeze(0)
    else:
        output, attention = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal), None
    output = F.linear(output.transpose(1, 2).flatten(2), out_proj_weight, out_proj_bias)
    return output.transpose(0, 1).contiguous() if batched else output.squeeze(0), attention


def _batch_first(query: Tensor, key: Tensor, value: Tensor, batched: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The same with axes (example, position, feature); arguments that are one tensor remain one tensor."""
    known = {id(x): x.transpose(0, 1) if batched else x.unsqueeze(0) for x in (query, key, value)}
    return known[id(query)], known[id(key)], known[id(value)]


def _projections(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: Tensor | None,
    separate: Sequence[Tensor | None],
    bias: Tensor | None,
) -> Sequence[Tensor]:
    """Queries, keys and values (example, position, feature), with one matrix product for inputs that are one tensor.

    The weights are ``packed`` as W_q, W_k and W_v one below the other, or ``separate``; ``bias`` is packed.
    """
    if packed is not None and key is value:
        if query is key:
            return F.linear(query, packed, bias).chunk(3, -1)
        sizes = [query.shape[-1], 2 * query.shape[-1]]
        w_q, w_kv = packed.split(sizes)
        b_q, b_kv = (None, None) if bias is None else bias.split(sizes)
        return F.linear(query, w_q, b_q), *F.linear(key, w_kv, b_kv).chunk(2, -1)
    weights = separate if packed is None else packed.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    inputs = (query, key, value)
    return [F.linear(x, w, b) for x, w, b in zip(inputs, weights, biases, strict=True)]  # type: ignore[arg-type]


def _joint_mask(attn_mask: Tensor | None, key_padding_mask: Tensor | None, b: int, q: Tensor) -> Tensor | None:
    """The term added to the scores, broadcasting to (example, head, query, key), or ``None``."""
    attn = None if attn_mask is None else _additive(attn_mask, q)
    if attn is not None and attn.dim() == 3:
        attn = attn.unflatten(0, (b, -1))
    if key_padding_mask is None:
        return attn
    padding = _additive(key_padding_mask, q).view(b, 1, 1, -1)
    return padding if attn is None else attn + padding


def _additive(mask: Tensor, q: Tensor) -> Tensor:
    """A boolean mask as 0 and -inf in the precision of q; other masks as they are."""
    return q.new_zeros(mask.shape).masked_fill(mask, -torch.inf) if mask.dtype is torch.bool else mask
