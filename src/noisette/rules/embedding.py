"""Embedding tables, looked up by id or by bag of ids: each id adds its gradient to one row of the table."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import ExampleGradients, Examples, PerExampleRow, Rows
from noisette.core.recording import DerivedWeight
from noisette.core.registry import Operation, Rewrite, derivation, named_arguments, rewrite, rule, rule_per_operand
from noisette.rules.arithmetic import unbroadcast

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
    _require_independent_rows(max_norm, scale_grad_by_freq)
    ids = examples.first(input).reshape(examples.count, -1)
    return touched_rows(ids, examples.sequences(dy), weight, padding_idx)


@rule_per_operand(F.embedding_bag, operands=("weight", "per_sample_weights"))
def embedding_bag(
    operand: str,
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
    """Table: G[id_t] += share_t dy; in mode "max", each feature's gradient goes to the id of the maximum.

    Weights of the ids in a bag: G_t = <dy, row id_t>.
    """
    _require_independent_rows(max_norm, scale_grad_by_freq)
    padding = None if padding_idx is None else padding_idx % weight.shape[0]
    if operand == "per_sample_weights":
        assert per_sample_weights is not None
        if offsets is not None:
            raise ValueError(
                "learned per_sample_weights and bags of different lengths; use bags of one length, or weights from data"
            )
        gradients = torch.einsum("bi,bti->bt", dy, weight[input])
        if padding is not None:
            gradients = gradients.masked_fill(input == padding, 0)
        return unbroadcast(examples, gradients, per_sample_weights)
    if examples.axis:
        raise ValueError(f"its bags are on axis 0 of the output, but the examples are on axis {examples.axis}")
    places = _places(input, offsets, include_last_offset)
    ids = F.pad(input.flatten(), (0, 1), value=-1)[places]
    if padding is not None:
        ids = ids.masked_fill(ids == padding, -1)
    shares = _shares(ids, weight, mode)
    if per_sample_weights is not None:
        shares = shares * F.pad(per_sample_weights.flatten(), (0, 1))[places].unsqueeze(2)
    ids, rows = examples.first(ids), examples.first(shares * dy.unsqueeze(1))
    b = examples.count
    return Rows(ids.reshape(b, -1), rows.reshape(b, -1, weight.shape[1]), weight.shape)


def _places(input: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    """Indices into the flattened ids for each bag, shape (bags, t), -1 after the end of a bag.

    Offsets [0, 2] into 5 ids give [[0, 1, -1], [2, 3, 4]].
    """
    if offsets is None:
        return torch.arange(input.numel(), device=input.device).view(input.shape)
    if not include_last_offset:
        offsets = torch.cat([offsets, offsets.new_tensor([input.numel()])])
    starts, ends = offsets[:-1], offsets[1:]
    longest = max(int((ends - starts).max()), 1)
    places = starts.unsqueeze(1) + torch.arange(longest, device=input.device)
    return places.masked_fill(places >= ends.unsqueeze(1), -1)


def _shares(ids: Tensor, weight: Tensor, mode: str) -> Tensor:
    """The derivative of each bag's output by each of its rows, shape (bags, t, 1), or (bags, t, i) in mode "max"."""
    present = (ids >= 0).to(weight.dtype).unsqueeze(2)
    if mode == "max":
        values = weight[ids].masked_fill(present == 0, -torch.inf)
        return torch.zeros_like(values).scatter_(1, values.argmax(1, keepdim=True), 1) * present
    return present / present.sum(1, keepdim=True).clamp(min=1) if mode == "mean" else present


def _dense(operation: Operation) -> Rewrite:
    """The operation without sparse gradients, because noise is added to every row of the table."""

    def dense(*args: Any, **kwargs: Any) -> Any:
        arguments = named_arguments(operation, args, kwargs)
        return operation(**arguments | {"sparse": False}) if arguments.get("sparse") else NotImplemented

    return dense


rewrite(F.embedding)(_dense(F.embedding))
rewrite(F.embedding_bag)(_dense(F.embedding_bag))


def _require_independent_rows(max_norm: float | None, scale_grad_by_freq: bool) -> None:
    if max_norm is not None:
        raise ValueError("max_norm changes the rows that a batch looks up, without noise; leave it out")
    if scale_grad_by_freq:
        raise ValueError("scale_grad_by_freq counts ids over the whole batch and so mixes examples; leave it out")


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
    if isinstance(form, PerExampleRow):
        b, each = form.rows.shape[0], ids.movedim(form.axis, 0)[form.examples]
        gradients = form.rows
    else:
        gradients = form.explicit()
        b, each = gradients.shape[0], ids.unsqueeze(0).expand(gradients.shape[0], *ids.shape)
    each = each.reshape(b, -1)
    return [(table, touched_rows(each, gradients.reshape(b, each.shape[1], -1), table, padding_idx))]
