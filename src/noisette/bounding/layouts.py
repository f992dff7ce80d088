"""Where each use of a forward pass holds the examples, measured once for each structure of the pass.

A model may keep its examples on any axis, as recurrent layers do that put time first, or fold them together with
positions. Shapes cannot tell: a batch of eight sentences of eight words looks the same either way. But the gradient at
an operation's output belongs, row by row, to one example each, so scaling one example's loss scales its rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from noisette.bounding.activations import visit_output_gradients
from noisette.paths import follow
from noisette.rules import Examples
from noisette.tape import Record

_GOLDEN = 0.6180339887498949
_TOLERANCE = 1e-2
# Rows whose gradient is smaller than this part of the largest tell nothing.
_FAINT = 1e-6

Profiles = dict[int, Tensor]  # axis -> norm of each of its rows


class Layouts:
    """Locates the examples in the output of each use, and remembers what it found for passes of the same structure."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[Examples | None, ...]] = {}

    def locate(self, losses: Tensor, record: Record, parameters: Mapping[str, Tensor]) -> list[Examples | None]:
        """Where each use holds its examples; ``None`` where no axis of its output holds them one by one.

        The graph of the losses stays as it is.
        """
        b = losses.shape[0]
        structure = tuple((use.operation, use.axes) for use in record.uses)
        if b == 1 or not record.uses:
            return [Examples(b)] * len(record.uses)
        if record.sorts or structure not in self._known:
            located, certain = _measure(losses, record, parameters)
            if record.sorts or not certain:  # what is sorted comes in another order in each batch
                return located
            self._known[structure] = tuple(located)
        return [examples and replace(examples, count=b) for examples in self._known[structure]]


def _measure(losses: Tensor, record: Record, parameters: Mapping[str, Tensor]) -> tuple[list[Examples | None], bool]:
    """Where each use holds its examples, and whether every one was seen clearly."""
    b = losses.shape[0]
    scale = (_distinct(b) if record.sorts else _scales(b)).to(losses)
    passed = follow(losses, record, parameters).passed
    plain, scaled = ({}, {})
    for cotangent, profiles in ((torch.ones_like(losses), plain), (scale, scaled)):

        def visit(k: int, dy: Any, profiles: dict[int, Profiles] = profiles) -> None:
            profiles[k] = {} if isinstance(dy, tuple) else _profiles(dy, b)

        uses = dict(enumerate(record.uses))
        visit_output_gradients(losses, cotangent, uses, passed, visit, retain_graph=True)
    located: list[Examples | None] = []
    certain = True
    for k, use in enumerate(record.uses):
        if use.several:
            located.append(Examples(b))  # such an operation says itself where they are
            continue
        found, clear = _fitting(plain.get(k, {}), scaled.get(k, {}), scale)
        if record.sorts and not found:
            found = _permuted(plain.get(k, {}), scaled.get(k, {}), scale)
        certain = certain and clear
        located.append(found[0] if found else None)
    return located, certain


def _scales(b: int) -> Tensor:
    """A factor for each loss: powers of two, which change no rounding, in an order that repeats nowhere."""
    return torch.tensor([2.0 ** int(4 * (i * _GOLDEN % 1)) for i in range(b)])


def _distinct(b: int) -> Tensor:
    """A factor of its own for each loss."""
    return torch.linspace(1, 2, b, dtype=torch.float64)


def _tolerance(scale: Tensor) -> float:
    """How far a row may grow otherwise than its owner's loss: little beside what sets two factors apart."""
    apart = (scale.unique().diff() / scale.max()).min()
    return min(_TOLERANCE, 0.2 * float(apart))


def _profiles(dy: Tensor, b: int) -> Profiles:
    return {
        axis: torch.linalg.vector_norm(dy, dim=[k for k in range(dy.dim()) if k != axis]) if dy.dim() > 1 else dy.abs()
        for axis in range(dy.dim())
        if dy.shape[axis] and dy.shape[axis] % b == 0
    }


def _fitting(plain: Profiles, scaled: Profiles, scale: Tensor) -> tuple[list[Examples], bool]:
    """Every place of the examples that explains how the rows have grown, and whether only one can be meant.

    Where no row tells anything the examples are taken to come first, until one does.
    """
    b = len(scale)
    found: list[Examples] = []
    clear = told = False
    for axis, rows in plain.items():
        seen = rows.isfinite() & scaled[axis].isfinite()
        seen &= rows > _FAINT * rows.nan_to_num(0, 0, 0).max()
        told = told or bool(seen.any())
        grown = scaled[axis][seen] / rows[seen]
        place = torch.arange(len(rows), device=rows.device)
        positions = len(rows) // b
        for inner in (False, True)[: 1 + (positions > 1)]:
            owner = (place % b if inner else place // positions)[seen]
            fits = bool(((grown / scale.to(rows)[owner] - 1).abs() <= _tolerance(scale)).all())
            if fits and len(owner):
                found.append(Examples(b, axis, inner))
                clear = len(owner.unique()) > 1
    return found if told else [Examples(b)], clear and len(found) == 1


def _permuted(plain: Profiles, scaled: Profiles, scale: Tensor) -> list[Examples]:
    """Axes of the batch's own length that hold each example once, in another order than the losses."""
    b = len(scale)
    found: list[Examples] = []
    for axis, rows in plain.items():
        seen = rows.isfinite() & (rows > _FAINT * rows.nan_to_num(0, 0, 0).max())
        grown = scaled[axis][seen] / rows[seen]
        owner = (grown.unsqueeze(1) - scale.to(rows)).abs().argmin(1)
        exact = bool(((grown / scale.to(rows)[owner] - 1).abs() <= _tolerance(scale)).all())
        # An example without gradient may have any place that is left; one that is not finite only its own.
        known = len(rows) - len(owner) < 2 or bool(rows.isfinite().all())
        if len(rows) == b and exact and known and len(owner.unique()) == len(owner):
            order = torch.full((b,), -1, device=rows.device)
            order[owner] = seen.nonzero().flatten()
            order[order < 0] = (~seen).nonzero().flatten()
            found.append(Examples(b, axis, order=order))
    return found
