"""Recurrent layers that are traced: unrolled, one step after the other, from the equations of a cell.

A compiler gets one matrix product and one pass over memory for each step, forward and backward, and nothing is computed
twice. The products of W_ih with all inputs and of W_hh with all states are still recorded as two uses, as in an
ordinary pass (``recurrent``), but nothing takes their values: a graph leaves them out.

Axes: (b, t, features) of all steps, (b, features) of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

F = torch.nn.functional
# Of the products, z and a or their sum alone, and the states; gives the new states, h before its projection.
Step = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]


@dataclass(frozen=True)
class LayerWeights:
    """The weights of one layer in one direction."""

    listed: list[Tensor]  # all of them, in the order of the fused operation
    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None
    w_hr: Tensor | None  # of an LSTM whose h_t is projected

    @classmethod
    def of(cls, listed: list[Tensor], has_biases: bool) -> LayerWeights:
        b_ih, b_hh = listed[2:4] if has_biases else (None, None)
        return cls(listed, listed[0], listed[1], b_ih, b_hh, listed[-1] if len(listed) % 2 else None)

    @property
    def detached(self) -> LayerWeights:
        """The same without gradients."""
        return LayerWeights.of([weight.detach() for weight in self.listed], self.b_ih is not None)


@dataclass(frozen=True)
class _OneStep:
    """One step as a graph of its own."""

    products: tuple[Tensor, ...]
    before: tuple[Tensor, ...]  # the states
    after: tuple[Tensor, ...]

    @classmethod
    def of(cls, step: Step, products: Sequence[Tensor], states: Sequence[Tensor]) -> _OneStep:
        own_products = tuple([product.detach().requires_grad_() for product in products])
        before = tuple([state.detach().requires_grad_() for state in states])
        with torch.enable_grad():
            return cls(own_products, before, step(own_products, before))

    def gradients(self, dafter: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor | None]]:
        """The gradients at the products and at the states before the step."""
        arriving = [(state, dy) for state, dy in zip(self.after, dafter, strict=True) if dy is not None]
        states, dys = zip(*arriving, strict=True)
        sources = (*self.products, *self.before)
        found: list[Any] = list(torch.autograd.grad(states, sources, dys, retain_graph=True, allow_unused=True))
        return found[: len(self.products)], found[len(self.products) :]


@dataclass(frozen=True)
class Unrolled:
    """The steps of one layer in one direction."""

    steps: Sequence[_OneStep]
    values: Sequence[Tensor]  # h, for an LSTM also c; (b, t, features)
    unprojected: Tensor  # h before its projection, (b, t, features)

    @classmethod
    def run(cls, step: Step, is_of_sum: bool, x: Tensor, states: Sequence[Tensor], weights: LayerWeights) -> Unrolled:
        """Compute all steps.

        Args:
            step: the equations of a cell.
            is_of_sum: whether they take z + a, and not the two products.
            x: the inputs, (b, t, features).
            states: before the first step, (b, features).
            weights: of the layer.
        """
        now, steps, each = [state.detach() for state in states], [], []
        with torch.no_grad():
            w_hh, b_hh, w_hr = weights.w_hh, weights.b_hh, weights.w_hr
            # Matrix products take one step out of a tensor by themselves. A pointwise kernel would be compiled anew for
            # each step that it takes.
            known = _joint_product(x, weights).unbind(1) if is_of_sum else x.unbind(1)
            for of_step in known:
                if is_of_sum:
                    products = [torch.addmm(of_step, now[0], w_hh.t())]
                else:
                    products = [F.linear(of_step, weights.w_ih, weights.b_ih), F.linear(now[0], w_hh, b_hh)]
                steps.append(_OneStep.of(step, products, now))
                now = [state.detach() for state in steps[-1].after]
                now[0] = now[0] if w_hr is None else F.linear(now[0], w_hr)
                each.append(now)
            values = [torch.stack(of_state, 1) for of_state in zip(*each, strict=True)]
            unprojected = torch.stack([one.after[0].detach() for one in steps], 1)
        return cls(steps, values, unprojected)

    def gradients(self, weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """Gradients at z, a, the product of a projection if there is one, and the states before the first step.

        Args:
            weights: W_hh, and W_hr if there is a projection.
            dy: the gradient at the values; ``None`` for zero.
        """
        w_hh, *w_hr = weights
        outside = [None if of_value is None else of_value.unbind(1) for of_value in dy[: len(self.values)]]
        dstates: list[Tensor | None] = [None] * len(self.values)  # what the later steps give
        dproducts: list[list[Tensor]] = []
        dh: list[Tensor] = []
        for t in reversed(range(len(self.steps))):
            dstates = [
                _sum(None if of_value is None else of_value[t], d) for of_value, d in zip(outside, dstates, strict=True)
            ]
            dh.append(torch.zeros_like(self.values[0][:, t]) if dstates[0] is None else dstates[0])
            dstates[0] = dh[-1] @ w_hr[0] if w_hr else dh[-1]
            at_products, dstates = self.steps[t].gradients(dstates)
            dstates[0] = _sum(at_products[-1] @ w_hh, dstates[0])
            dproducts.append(at_products)
        at_z, *at_a = (torch.stack(of_product, 1) for of_product in zip(*reversed(dproducts), strict=True))
        projected = [torch.stack(dh[::-1], 1)] if w_hr else []
        first = [d for d in dstates if d is not None]
        assert len(first) == len(dstates)
        return at_z, at_a[0] if at_a else at_z, *projected, *first


def _joint_product(x: Tensor, weights: LayerWeights) -> Tensor:
    """W_ih x_t + b_ih + b_hh of all steps."""
    both = None if weights.b_ih is None or weights.b_hh is None else weights.b_ih + weights.b_hh
    return F.linear(x, weights.w_ih, both)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other
