"""The batch axis of each use in a forward pass, measured once for each structure of the pass.

A model may hold its examples on any axis, as time-first recurrent layers do, or fold them together with positions.
Shapes alone cannot tell: a batch of eight sentences of eight words has the same shape either way. But each row of the
gradient at an operation's output belongs to one example, so scaling one example's loss scales its rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from noisette.gradients.autograd_graph import LossGraph, visit_output_gradients
from noisette.gradients.rules import Examples
from noisette.gradients.tape import Recording, Use

_GOLDEN = 0.6180339887498949
_TOLERANCE = 1e-2
# Rows whose gradient is smaller than this part of the largest are ignored.
_FAINT = 1e-6

Profiles = dict[int, Tensor]  # axis -> norm of each of its rows


class BatchAxisFinder:
    """Finds the batch axis of each use's output, and reuses the result for passes of the same structure.

    A structure is the sequence of operations, how the axes of their outputs compare with the number of examples, and
    which of them the losses depend on. With one position to an example, an order of the rows is not to be told apart
    from another one that differs with several.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[int, Examples | None]] = {}  # structure -> by number of the use

    def locate(self, losses: Tensor, recording: Recording, graph: LossGraph) -> list[Examples | None]:
        """Where the output of each use holds the examples.

        ``None`` where no axis of the output holds them one by one, and where no loss depends on the use. The graph of
        the losses is left as it is.
        """
        b, uses = losses.shape[0], recording.uses
        if b == 1:
            return [Examples(b)] * len(uses)
        reached = [not graph.reached.isdisjoint([edge.node for edge in use.edges]) for use in uses]
        structure = tuple([(use.operation, _rows(use, b), met) for use, met in zip(uses, reached, strict=True)])
        # Sorting by values gives another order in each batch.
        known = {} if recording.sorts else self._known.setdefault(structure, {})
        unknown = [k for k, met in enumerate(reached) if met and k not in known]
        if unknown:
            found, clear = _measure(losses, recording, graph, unknown)
            known |= {k: found[k] for k in clear}
            known = found | known
        return [(place := known.get(k)) and replace(place, count=b) for k in range(len(uses))]


def _rows(use: Use, b: int) -> tuple[int, ...]:
    """For each axis of an output: 1 for one row to an example, 2 for several, 0 where it cannot hold the examples."""
    return tuple([0 if length % b else min(length // b, 2) for length in use.shape])


def _measure(
    losses: Tensor, recording: Recording, graph: LossGraph, asked: Sequence[int]
) -> tuple[dict[int, Examples | None], list[int]]:
    """Where the uses of these numbers hold their examples, and the numbers of those with an unambiguous answer.

    Two backward passes, one with equal and one with different weights on the losses: a row that grew by the weight of
    example i belongs to example i. With weights (1, 8, 2) and 6 rows that grew by (1, 1, 8, 8, 2, 2) the positions of
    each example stand together; by (1, 8, 2, 1, 8, 2), the examples of each position.
    """
    b = losses.shape[0]
    clear = [k for k in asked if recording.uses[k].several]  # the rules of such operations know their own layout
    found: dict[int, Examples | None] = dict.fromkeys(asked, Examples(b))
    scale = (_distinct(b) if recording.sorts else _scales(b)).to(losses)
    profiles_of = partial(_all_profiles, losses, recording.uses, graph)
    plain = profiles_of(torch.ones_like(losses), [k for k in asked if k not in clear])
    # Without a row to measure, the first axis is assumed until a later batch has one.
    measurable = [k for k, profiles in plain.items() if any(_seen(rows).any() for rows in profiles.values())]
    scaled = profiles_of(scale, measurable)
    for k in measurable:
        fitting, is_clear = _fitting(plain[k], scaled[k], scale)
        if recording.sorts and not fitting:
            fitting = _permuted(plain[k], scaled[k], scale)
        found[k] = fitting[0] if fitting else None
        clear += [k] if is_clear else []
    return found, clear


def _all_profiles(
    losses: Tensor, uses: Sequence[Use], graph: LossGraph, cotangent: Tensor, asked: Sequence[int]
) -> dict[int, Profiles]:
    """The profiles of the gradients that losses with this cotangent send to the outputs of the uses asked for."""
    found: dict[int, Profiles] = {}

    def visit(k: int, dy: Any) -> None:
        if k in wanted:
            found[k] = _profiles(dy, len(losses))

    wanted = set(asked)
    if wanted:
        visit_output_gradients(losses, cotangent, dict(enumerate(uses)), graph, visit, retain_graph=True)
    return found


def _scales(b: int) -> Tensor:
    """A factor for each loss: powers of two, which are exact in floating point, in an order without a period."""
    return torch.tensor([2.0 ** int(4 * (i * _GOLDEN % 1)) for i in range(b)])


def _distinct(b: int) -> Tensor:
    """A different factor for each loss."""
    return torch.linspace(1, 2, b, dtype=torch.float64)


def _tolerance(scale: Tensor) -> float:
    """By how much the growth of a row may differ from its loss's factor: little beside the gap of two factors."""
    apart = (scale.unique().diff() / scale.max()).min()
    return min(_TOLERANCE, 0.2 * float(apart))


def _profiles(dy: Tensor, b: int) -> Profiles:
    return {
        axis: torch.linalg.vector_norm(dy, dim=[k for k in range(dy.dim()) if k != axis]) if dy.dim() > 1 else dy.abs()
        for axis in range(dy.dim())
        if dy.shape[axis] and dy.shape[axis] % b == 0
    }


def _seen(rows: Tensor) -> Tensor:
    """Which rows are large enough to be measured."""
    return rows.isfinite() & (rows > _FAINT * rows.nan_to_num(0, 0, 0).max())


def _fitting(plain: Profiles, scaled: Profiles, scale: Tensor) -> tuple[list[Examples], bool]:
    """Every layout of the examples that explains how the rows have grown, and whether it is the only one."""
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
        # An example without gradient may take any row that is left; one that is not finite cannot be placed.
        known = len(rows) - len(owner) < 2 or bool(rows.isfinite().all())
        if len(rows) == b and exact and known and len(owner.unique()) == len(owner):
            order = torch.full((b,), -1, device=rows.device)
            order[owner] = seen.nonzero().flatten()
            order[order < 0] = (~seen).nonzero().flatten()
            found.append(Examples(b, axis, order=order))
    return found
