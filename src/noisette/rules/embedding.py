"""Embedding tables: each id adds its gradient to one row of the table."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import (
    DerivedWeight,
    ExampleGradients,
    Examples,
    Operation,
    Rewrite,
    Rows,
    derivation,
    rewrite,
    rule,
)

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


def _dense(operation: Operation) -> Rewrite:
    """The operation without sparse gradients, because noise is added to every row of the table."""
    signature = inspect.signature(operation)

    def dense(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
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
    gradients = form.explicit()
    each = ids.expand(len(gradients), *ids.shape).flatten(1)
    return [(table, touched_rows(each, gradients.reshape(*each.shape, -1), table, padding_idx))]
