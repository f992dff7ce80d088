"""The batch axis of each use in a forward pass, measured once for each structure of the pass.

A model may hold its examples on any axis, as time-first recurrent layers do, or fold them together with positions.
Shapes alone cannot tell: a batch of eight sentences of eight words has the same shape either way. But each row of the
gradient at an operation's output belongs to one example, so scaling one example's loss scales its rows alone.

Factors are powers of two, which are exact in floating point: a row is scaled to the last bit whatever its own size, so
no example can hide the place of another.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from noisette.core.backward import LossGraph, visit_output_gradients
from noisette.core.forms import Examples
from noisette.core.recording import Recording, Use
from noisette.errors import PrivacyError
from noisette.gradients.reordering import BY_VALUES

_BASE = 16  # factors of one pass: 2^-8 to 2^7
_TOLERANCE = 1e-3  # of the largest element of a row
_FEWEST_REUSED, _MOST_REUSED = 24, 72  # batches between two measurements of what is known already
_NOWHERE, _UNSEEN = -2, -1  # owners of a row: no example alone, or unknown


def secret_order(b: int) -> Tensor:
    """The numbers from 0 to b - 1 in a random order that nobody can predict; torch's own generators are not used."""
    return torch.frombuffer(bytearray(os.urandom(8 * b)), dtype=torch.int64).argsort()


@dataclass(frozen=True)
class _Rows:
    """For an axis of a gradient, of each of its rows the largest element and a random combination of all elements."""

    largest: Tensor
    combination: Tensor
    tiny: float  # the smallest normal number of the gradient's dtype


_Profiles = dict[int, _Rows]  # by axis


class BatchAxisFinder:
    """Finds the batch axis of each use's output, and reuses the result for passes of the same structure.

    A structure is the sequence of operations, how the axes of their outputs compare with the number of examples, which
    of them the losses depend on, and the calls that may move examples along their axis. With one position to an
    example, an order of the rows is not to be told apart from another one that differs with several. Where such a call
    depends on values, or examples were found in another order than the losses, nothing is reused. What is reused is
    measured anew after a random number of batches, and for batches of more than twice the size: a model may begin to
    mix or to move its examples later.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[int, Examples | None]] = {}  # structure -> by number of the use
        self._changing: set[tuple[Any, ...]] = set()  # structures whose places were found to change
        self._largest = 0
        self._left = 0  # batches until the next measurement

    def locate(self, losses: Tensor, recording: Recording, graph: LossGraph) -> list[Examples | None]:
        """Where the output of each use holds the examples.

        ``None`` where no axis of the output holds them one by one, and where no loss depends on the use. The graph of
        the losses is left as it is.

        Raises:
            PrivacyError: examples mix in a use in which they did not before.
        """
        b, uses = losses.shape[0], recording.uses
        if b == 1:
            return [Examples(b)] * len(uses)
        reached = [not graph.reached.isdisjoint([edge.node for edge in use.edges]) for use in uses]
        structure = (
            tuple([(use.operation, _rows(use, b), met) for use, met in zip(uses, reached, strict=True)]),
            recording.moves,
            _modes(recording),
        )
        known = self._known.setdefault(structure, {})
        moving = BY_VALUES in recording.moves or structure in self._changing
        anew = moving or self._is_due(b)
        unknown = [k for k, met in enumerate(reached) if met and (anew or k not in known)]
        if unknown:
            found, clear = _measure(losses, recording, graph, unknown)
            settled = {k: at for k, at in found.items() if k in clear or at is None or at.order is not None}
            if moving:
                known = found
            else:
                self._compare(structure, known, settled)
                known |= {k: at for k, at in settled.items() if at is not None and at.order is None}
                known = found | known | settled
        return [(place := known.get(k)) and replace(place, count=b) for k in range(len(uses))]

    def _is_due(self, b: int) -> bool:
        """Whether what is known is to be measured anew in this batch."""
        self._left -= 1
        if self._left > 0 and b <= 2 * self._largest:
            return False
        self._left = _FEWEST_REUSED + int.from_bytes(os.urandom(2)) % (_MOST_REUSED - _FEWEST_REUSED)
        self._largest = max(self._largest, b)
        return True

    def _compare(
        self, structure: tuple[Any, ...], known: dict[int, Examples | None], found: dict[int, Examples | None]
    ) -> None:
        """Hold a new measurement against that of earlier batches of the same structure."""
        for k, now in found.items():
            before = known.get(k)
            if before is not None and now is None:
                raise PrivacyError(
                    "examples mix in the model, and did not in earlier batches: an operation on a trainable parameter "
                    "has an output of which no row belongs to one example alone. Keep the examples apart in every batch"
                )
            if now is not None and (
                now.order is not None or (before is not None and before != replace(now, count=before.count))
            ):
                self._changing.add(structure)


def _modes(recording: Recording) -> tuple[Any, ...]:
    """Modes and plain flags of the calls of the root module."""
    plain = (bool, str, type(None))
    return tuple([
        (call.module.training, *[a for a in call.args if isinstance(a, plain)],
         *[(name, a if isinstance(a, plain) else None) for name, a in call.kwargs.items()])
        for call in recording.calls
    ])  # fmt: skip


def _rows(use: Use, b: int) -> tuple[int, ...]:
    """For each axis of an output: 1 for one row to an example, 2 for several, 0 where it cannot hold the examples."""
    return tuple([0 if length % b else min(length // b, 2) for length in use.shape])


def _measure(
    losses: Tensor, recording: Recording, graph: LossGraph, asked: Sequence[int]
) -> tuple[dict[int, Examples | None], list[int]]:
    """Where the uses of these numbers hold their examples, and the numbers of those with an unambiguous answer.

    Each example gets a random number, and one backward pass for each digit of the numbers multiplies its loss by two to
    the power of the digit. A row that grew by the digits of example i belongs to example i. If 6 rows belong to the
    examples (0, 0, 1, 1, 2, 2), the positions of each example stand together; if to (0, 1, 2, 0, 1, 2), the examples of
    each position.
    """
    b, by_values = losses.shape[0], BY_VALUES in recording.moves
    clear = [k for k in asked if recording.uses[k].several]  # the rules of such operations know their own layout
    found: dict[int, Examples | None] = dict.fromkeys(asked, Examples(b))
    numbers, seed = secret_order(b), int.from_bytes(os.urandom(8), signed=True)
    profiles_of = partial(_all_profiles, losses, recording.uses, graph, seed)
    plain = profiles_of(torch.ones_like(losses), [k for k in asked if k not in clear])
    # Without a row to measure, the first axis is assumed until a later batch has one.
    seen = [k for k, profiles in plain.items() if any(_seen(rows).any() for rows in profiles.values())]
    numbered = {k: {axis: torch.zeros(len(rows.largest), dtype=torch.int64) for axis, rows in plain[k].items()}
                for k in seen}  # fmt: skip
    unit = 1
    while seen and unit < b:
        factors = torch.exp2((numbers // unit % _BASE - _BASE // 2).double()).to(losses)
        for k, profiles in profiles_of(factors, seen).items():
            for axis, rows in profiles.items():
                digits, sum_so_far = _digits(plain[k][axis], rows), numbered[k][axis]
                numbered[k][axis] = torch.where((digits < 0) | (sum_so_far < 0), digits.minimum(sum_so_far),
                                                sum_so_far + unit * digits)  # fmt: skip
        unit *= _BASE
    example_of = numbers.argsort()
    for k in plain if by_values else seen:
        owners = {
            axis: torch.where(row < 0, row, torch.where(row < b, example_of[row.clamp(0, b - 1)], _NOWHERE))
            for axis, row in numbered.get(k, {}).items()
        } or {axis: torch.full((len(rows.largest),), _UNSEEN) for axis, rows in plain[k].items()}
        layouts = [layout for axis, owner in owners.items() for layout in _layouts(owner, plain[k][axis], b, axis)]
        layouts = [layout for layout in layouts if layout.examples_seen or k not in numbered]
        fitting = [layout for layout in layouts if layout.in_order] or layouts
        found[k] = fitting[0].examples(reordered=by_values or not fitting[0].in_order) if fitting else None
        clear += [k] if len(fitting) == 1 and fitting[0].examples_seen > 1 else []
    return found, clear


def _all_profiles(
    losses: Tensor, uses: Sequence[Use], graph: LossGraph, seed: int, cotangent: Tensor, asked: Sequence[int]
) -> dict[int, _Profiles]:
    """The profiles of the gradients that losses with this cotangent send to the outputs of the uses asked for."""
    found: dict[int, _Profiles] = {}

    def visit(k: int, dy: Any) -> None:
        if k in wanted:
            found[k] = _profiles(dy, len(losses), seed)

    wanted = set(asked)
    if wanted:
        visit_output_gradients(losses, cotangent, dict(enumerate(uses)), graph, visit, retain_graph=True)
    return found


def _profiles(dy: Tensor, b: int, seed: int) -> _Profiles:
    """The rows of each axis that may hold the examples; combinations have the signs that the seed gives."""
    axes = [axis for axis, length in enumerate(dy.shape) if length and length % b == 0]
    if not axes or not dy.numel():
        return {}
    # The top bit of a product with a secret number, as in multiplicative hashing.
    hashed = torch.arange(dy.numel(), device=dy.device).mul_(seed | 1).view(dy.shape)
    size, real = dy.abs(), dy.real + dy.imag if dy.is_complex() else dy
    signed = torch.where(hashed < 0, -real, real)
    found: _Profiles = {}
    for axis in axes:
        others = [k for k in range(dy.dim()) if k != axis]
        largest, combination = (size.amax(others), signed.sum(others)) if others else (size, signed)
        found[axis] = _Rows(largest.double().cpu(), combination.double().cpu(), torch.finfo(dy.dtype).tiny)
    return found


def _seen(rows: _Rows) -> Tensor:
    """Which rows can be measured: finite, and above the numbers that are rounded when they are scaled down."""
    return rows.combination.isfinite() & rows.largest.isfinite() & (rows.largest > rows.tiny * 2**_BASE)


def _digits(plain: _Rows, scaled: _Rows) -> Tensor:
    """The digit by which each row has grown, ``_UNSEEN`` where it cannot be measured, ``_NOWHERE`` for no digit."""
    digit = (scaled.largest / plain.largest).log2().round()
    tolerance = _TOLERANCE * scaled.largest
    grown = (scaled.largest - plain.largest * digit.exp2()).abs() <= tolerance
    grown &= (scaled.combination - plain.combination * digit.exp2()).abs() <= tolerance
    digit += _BASE // 2
    grown &= (digit >= 0) & (digit < _BASE)
    measured = _seen(plain) & scaled.largest.isfinite() & scaled.combination.isfinite()
    return torch.where(measured, torch.where(grown, digit, _NOWHERE), _UNSEEN).nan_to_num(_UNSEEN).long()


@dataclass(frozen=True)
class _Layout:
    """A way to divide an axis among the examples that explains how its rows have grown."""

    axis: int
    inner: bool
    owner: Tensor  # (b,): the example at each place, -1 where no row of the place could be measured
    finite: Tensor  # (b,): whether the rows of the place are

    @property
    def in_order(self) -> bool:
        """Whether each example is at its own place, as far as it was measured."""
        return bool(((self.owner == torch.arange(len(self.owner))) | (self.owner < 0)).all())

    @property
    def examples_seen(self) -> int:
        """How many examples were measured."""
        return int((self.owner >= 0).sum())

    def examples(self, *, reordered: bool) -> Examples:
        """The layout for the rules; ``reordered`` if examples that were not measured may be anywhere.

        Rows that are not finite go to the examples that are left if there is one for each: they contribute nothing.
        Otherwise the examples that are left have no place: their gradient is zero, or cannot be told from another's.
        """
        b, known = len(self.owner), self.owner >= 0
        if not reordered or (self.in_order and bool(known.all())):
            return Examples(b, self.axis, self.inner)
        order = torch.full((b,), -1)
        order[self.owner[known]] = known.nonzero().flatten()
        left, broken = order < 0, ~known & ~self.finite
        if left.sum() == broken.sum():
            order[left] = broken.nonzero().flatten()
        return Examples(b, self.axis, self.inner, order)


def _layouts(owner: Tensor, rows: _Rows, b: int, axis: int) -> list[_Layout]:
    """Every layout of an axis whose rows have these owners, none if some row belongs to no example alone."""
    found: list[_Layout] = []
    if (owner == _NOWHERE).any():
        return found
    finite = rows.largest.isfinite() & rows.combination.isfinite()
    for inner in (False, True)[: 1 + (len(owner) > b)]:
        at, is_finite = (side.view(-1, b).t() if inner else side.view(b, -1) for side in (owner, finite))
        of_place = at.amax(1)
        together = ((at == of_place.unsqueeze(1)) | (at == _UNSEEN)).all()
        known = of_place[of_place >= 0]
        if together and len(known.unique()) == len(known):
            found.append(_Layout(axis, inner, of_place, is_finite.all(1)))
    return found
