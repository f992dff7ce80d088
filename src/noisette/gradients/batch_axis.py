"""Where each use of a forward pass holds the examples, measured once for each structure of the pass.

A model may keep its examples on any axis, as recurrent layers do that put time first, or fold them together with
positions. Shapes cannot tell: a batch of eight sentences of eight words looks the same either way. But the gradient at
an operation's output belongs, row by row, to one example each, so scaling one example's loss scales its rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from noisette.gradients.output_gradients import visit_output_gradients
from noisette.gradients.rules import Examples
from noisette.gradients.tape import Record

_GOLDEN = 0.6180339887498949
_TOLERANCE = 1e-2
# Rows whose gradient is smaller than this part of the largest tell nothing.
_FAINT = 1e-6

Profiles = dict[int, Tensor]  # axis -> norm of each of its rows


class BatchAxisFinder:
    """Locates the examples in the output of each use, and remembers what it found for passes of the same structure.

    A structure is the operations in their order, their numbers of axes, and which of them the losses depend on.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[int, Examples | None]] = {}  # structure -> by number of the use

    def locate(self, losses: Tensor, record: Record) -> list[Examples | None]:
        """Where each use holds its examples.

        ``None`` where no axis of its output holds them one by one, and where no loss depends on it. The graph of the
        losses stays as it is.
        """
        b = losses.shape[0]
        if b == 1:
            return [Examples(b)] * len(record.uses)
        reached = [any(edge.node in record.paths.reached for edge in use.edges) for use in record.uses]
        structure = tuple((use.operation, use.axes, met) for use, met in zip(record.uses, reached, strict=True))
        # What is sorted comes in another order in each batch.
        places = {} if record.sorts else self._known.setdefault(structure, {})
        unknown = [k for k, met in enumerate(reached) if met and k not in places]
        found, clear = _measure(losses, record, unknown) if unknown else ({}, [])
        places |= {k: found[k] for k in clear}
        found |= places
        return [(place := found.get(k)) and replace(place, count=b) for k in range(len(record.uses))]


def _measure(losses: Tensor, record: Record, asked: Sequence[int]) -> tuple[dict[int, Examples | None], list[int]]:
    """Where the uses of these numbers hold their examples, and the numbers of those that were seen clearly."""
    b = losses.shape[0]
    clear = [k for k in asked if record.uses[k].several]  # such an operation says itself where they are
    found: dict[int, Examples | None] = dict.fromkeys(asked, Examples(b))
    scale = (_distinct(b) if record.sorts else _scales(b)).to(losses)
    plain = _all_profiles(losses, torch.ones_like(losses), record, [k for k in asked if k not in clear])
    # Where no row tells anything the examples are taken to come first, until one does.
    telling = [k for k, profiles in plain.items() if any(_seen(rows).any() for rows in profiles.values())]
    scaled = _all_profiles(losses, scale, record, telling)
    for k in telling:
        fitting, is_clear = _fitting(plain[k], scaled[k], scale)
        if record.sorts and not fitting:
            fitting = _permuted(plain[k], scaled[k], scale)
        found[k] = fitting[0] if fitting else None
        clear += [k] if is_clear else []
    return found, clear


def _all_profiles(losses: Tensor, cotangent: Tensor, record: Record, asked: Sequence[int]) -> dict[int, Profiles]:
    """The profiles of the gradient that these losses send to the output of each use."""
    found: dict[int, Profiles] = {}

    def visit(k: int, dy: Any) -> None:
        found[k] = _profiles(dy, len(losses))

    if asked:
        uses = {k: record.uses[k] for k in asked}
        visit_output_gradients(losses, cotangent, uses, visit, retain_graph=True)
    return found


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


def _seen(rows: Tensor) -> Tensor:
    """Which rows tell something."""
    return rows.isfinite() & (rows > _FAINT * rows.nan_to_num(0, 0, 0).max())


def _fitting(plain: Profiles, scaled: Profiles, scale: Tensor) -> tuple[list[Examples], bool]:
    """Every place of the examples that explains how the rows have grown, and whether only one can be meant."""
    b = len(scale)
    found: list[Examples] = []
    clear = False
    for axis, rows in plain.items():
        seen = _seen(rows) & scaled[axis].isfinite()
        grown = scaled[axis][seen] / rows[seen]
        place = torch.arange(len(rows), device=rows.device)
        positions = len(rows) // b
        for inner in (False, True)[: 1 + (positions > 1)]:
            owner = (place % b if inner else place // positions)[seen]
            fits = bool(((grown / scale.to(rows)[owner] - 1).abs() <= _tolerance(scale)).all())
            if fits and len(owner):
                found.append(Examples(b, axis, inner))
                clear = len(owner.unique()) > 1
    return found, clear and len(found) == 1


def _permuted(plain: Profiles, scaled: Profiles, scale: Tensor) -> list[Examples]:
    """Axes of the batch's own length that hold each example once, in another order than the losses."""
    b = len(scale)
    found: list[Examples] = []
    for axis, rows in plain.items():
        seen = _seen(rows)
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
