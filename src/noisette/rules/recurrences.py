"""Gradients of recurrent layers at their two matrix products, by one backward pass through time in closed form.

A layer is z_t = W_ih x_t + b_ih, a_t = W_hh h_{t-1} + b_hh, and a step that computes h_t from the two. The states are
already known when a function of this file is called. It returns them as outputs of an autograd function of z, a and the
states before the first step, whose backward pass gives the gradients at z and a. Those are all that the rules of the
two products need.

Example: h_t = tanh(z_t + a_t) with one feature, w = W_hh and three steps. With dy_t the gradient of the losses at h_t
and slope_t = 1 - h_t^2, the gradient at z_t and at a_t is delta_t = slope_t dh_t, from the last step to the first:

    dh_3 = dy_3,    dh_2 = dy_2 + w delta_3,    dh_1 = dy_1 + w delta_2,    at the first state: w delta_1

Axes: (b, t, features) outside; (t, b, features) inside, where a step is contiguous in memory. All factors that do not
depend on later steps are computed for all steps at once, so that the pass itself takes a few kernels per step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

# gradient * y (1 - y) and gradient * (1 - y * y), in one kernel each
_SIGMOID_BACKWARD = torch.ops.aten.sigmoid_backward.grad_input
_TANH_BACKWARD = torch.ops.aten.tanh_backward.grad_input


@dataclass(frozen=True)
class KnownStates:
    """One direction of one layer, with the values of its forward pass; axes (b, t, features)."""

    z: Tensor  # W_ih x_t + b_ih
    a: Tensor  # W_hh h_{t-1} + b_hh
    before: Tensor  # h_{t-1}
    states: Sequence[Tensor]  # (b, features) before the first step: h, for an LSTM also c
    output: Tensor  # h_t
    w_hh: Tensor
    w_hr: Tensor | None  # of an LSTM whose h_t is projected

    def by_time(self, tensor: Tensor) -> Tensor:
        """The tensor with axes (t, b, features), detached, in the precision of the weights."""
        return tensor.detach().transpose(0, 1).to(self.w_hh.dtype)


def tanh(known: KnownStates) -> tuple[Tensor, ...]:
    """h_t = tanh(z_t + a_t)."""
    output = known.by_time(known.output)
    slope = _TANH_BACKWARD(output.new_ones(()).expand_as(output), output, grad_input=torch.empty_like(output))
    return _connect(known, _Simple(slope), [known.output])


def relu(known: KnownStates) -> tuple[Tensor, ...]:
    """h_t = max(z_t + a_t, 0)."""
    slope = (known.by_time(known.output) > 0).to(known.w_hh.dtype)
    return _connect(known, _Simple(slope), [known.output])


def lstm(known: KnownStates) -> tuple[Tensor, ...]:
    """c_t = s(f) c_{t-1} + s(i) tanh(g) and h_t = W_hr (s(o) tanh(c_t)), where i, f, g, o = z_t + a_t; returns h and c.

    s is the logistic function. Without a projection there is no W_hr. ``factors`` are the derivatives of c_t by the
    gates i, f and g before their activations, and of the unprojected h_t by o.
    """
    b, length, width = known.z.shape
    gates = known.w_hh.new_empty(length, b, 4, width // 4)
    torch.add(known.by_time(known.z), known.by_time(known.a), out=gates.flatten(2))
    gates[:, :, :2].sigmoid_()
    gates[:, :, 2].tanh_()
    gates[:, :, 3].sigmoid_()
    i, f, g, o = gates.unbind(2)
    fresh = i * g
    cells = fresh.new_empty(length + 1, *fresh.shape[1:])
    cells[0] = known.states[1].detach()
    for t in range(length):
        torch.addcmul(fresh[t], f[t], cells[t], out=cells[t + 1])
    squashed = cells[1:].tanh()
    factors = torch.empty_like(gates)
    _SIGMOID_BACKWARD(g, i, grad_input=factors[:, :, 0])
    _SIGMOID_BACKWARD(cells[:-1], f, grad_input=factors[:, :, 1])
    _TANH_BACKWARD(i, g, grad_input=factors[:, :, 2])
    _SIGMOID_BACKWARD(squashed, o, grad_input=factors[:, :, 3])
    steps = _Lstm(factors, _TANH_BACKWARD(o, squashed, grad_input=fresh), f.contiguous())
    values = [known.output, cells[1:].transpose(0, 1)]
    if known.w_hr is None:
        return _connect(known, steps, values)
    projected = torch.nn.functional.linear((o * squashed).transpose(0, 1), known.w_hr)
    return _connect(known, steps, values, projected)


def gru(known: KnownStates) -> tuple[Tensor, ...]:
    """h_t = (1 - s(u)) tanh(n) + s(u) h_{t-1}, where r, u = z_t + a_t and n = z_t + s(r) a_t by thirds of z, a.

    ``factors`` are the derivatives of h_t by r, u and n before their activations, at a.
    """
    b, length, width = known.z.shape
    z, a = (known.by_time(product).unflatten(2, (3, width // 3)) for product in (known.z, known.a))
    r, u = (z[:, :, :2] + a[:, :, :2]).sigmoid_().unbind(2)
    hidden = a[:, :, 2]
    n = torch.addcmul(z[:, :, 2], r, hidden).tanh_()
    factors = known.w_hh.new_empty(length, b, 3, width // 3)
    new = _TANH_BACKWARD(1 - u, n, grad_input=torch.empty_like(n))
    torch.mul(new, r, out=factors[:, :, 2])
    _SIGMOID_BACKWARD(known.by_time(known.before).sub(n), u, grad_input=factors[:, :, 1])
    _SIGMOID_BACKWARD(new * hidden, r, grad_input=factors[:, :, 0])
    return _connect(known, _Gru(factors, u.contiguous(), new), [known.output])


class Steps(Protocol):
    """What the backward pass through time needs of the forward pass."""

    def gradients(self, weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """Gradients at z, a, the product of a projection if there is one, and the states before the first step.

        Args:
            weights: W_hh, and W_hr if there is a projection.
            dy: the gradient at h (b, t, features), for an LSTM also at c; ``None`` for zero.
        """
        ...


class _StatesFunction(torch.autograd.Function):
    """States that are known already, as outputs of the tensors on which they depend."""

    @staticmethod
    def forward(
        ctx: Any, steps: Steps, values: Sequence[Tensor], weights: Sequence[Tensor], *sources: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.steps = steps
        ctx.save_for_backward(*weights)  # so that a change of them before the backward pass is an error
        ctx.set_materialize_grads(False)
        output, *others = values
        return (output.clone() if output._is_view() else output, *others)  # a view would refuse in-place changes

    @staticmethod
    def backward(ctx: Any, *dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a recorded recurrent layer has no second derivatives; take steps by a cell instead")
        return None, None, None, *ctx.steps.gradients(ctx.saved_tensors, dy)


def connect(
    steps: Steps, values: Sequence[Tensor], weights: Sequence[Tensor | None], sources: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Known values as functions of z, a, the product of a projection and the states before the first step.

    Args:
        steps: the backward pass.
        values: h of all steps, for an LSTM also c; axes (b, t, features).
        weights: W_hh, and W_hr if there is a projection.
        sources: z, a, the product of a projection if there is one, and the states before the first step.
    """
    return _StatesFunction.apply(steps, values, [w.detach() for w in weights if w is not None], *sources)


def _connect(known: KnownStates, steps: Steps, values: Sequence[Tensor], *projected: Tensor) -> tuple[Tensor, ...]:
    return connect(steps, values, (known.w_hh, known.w_hr), (known.z, known.a, *projected, *known.states))


@dataclass(frozen=True)
class _Simple:
    """delta_t = slope_t dh_t at z and at a."""

    slope: Tensor  # (t, b, feature)

    def gradients(self, weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        [w_hh] = weights
        dh = delta = _arriving(dy[0], self.slope)  # delta overwrites dh
        for t in _last_to_first(dh, delta, w_hh):
            delta[t] *= self.slope[t]
        at_products = _batch_first(delta)
        return at_products, at_products, delta[0] @ w_hh


@dataclass(frozen=True)
class _Lstm:
    """delta_t = factors_t dc_t for gates i, f and g, and factors_t dh_t for gate o, at z and at a.

    dc_t = f_{t+1} dc_{t+1} + through_t dh_t + the gradient of the losses at c_t, with dh_t before the projection.
    """

    factors: Tensor  # (t, b, gate, feature)
    through: Tensor  # the derivative of h_t by c_t, (t, b, feature)
    forget: Tensor  # f_t, (t, b, feature)

    def gradients(self, weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        w_hh, *w_hr = weights
        delta, dc = torch.empty_like(self.factors), torch.zeros_like(self.through[0])
        dh = _arriving(dy[0], self.through[..., :1].expand(-1, -1, w_hh.shape[1]))
        dcells = None if dy[1] is None else _arriving(dy[1], self.through)
        for t in _last_to_first(dh, delta.flatten(2), w_hh):
            unprojected = dh[t] @ w_hr[0] if w_hr else dh[t]
            if dcells is not None:
                dc += dcells[t]
            dc.addcmul_(unprojected, self.through[t])
            torch.mul(self.factors[t, :, :3], dc.unsqueeze(1), out=delta[t, :, :3])
            torch.mul(self.factors[t, :, 3], unprojected, out=delta[t, :, 3])
            dc *= self.forget[t]
        at_products = _batch_first(delta)
        return at_products, at_products, *([_batch_first(dh)] if w_hr else []), delta[0].flatten(1) @ w_hh, dc


@dataclass(frozen=True)
class _Gru:
    """delta_t = factors_t dh_t at a; at z the part of n is without the factor r. h_{t-1} gets u_t dh_t in addition."""

    factors: Tensor  # (t, b, gate, feature)
    update: Tensor  # u_t, (t, b, feature)
    new: Tensor  # the derivative of h_t by n before its activation, (t, b, feature)

    def gradients(self, weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        [w_hh], delta = weights, torch.empty_like(self.factors)
        dh = _arriving(dy[0], self.new)
        for t in _last_to_first(dh, delta.flatten(2), w_hh):
            if t + 1 < len(dh):
                dh[t].addcmul_(dh[t + 1], self.update[t + 1])
            torch.mul(self.factors[t], dh[t].unsqueeze(1), out=delta[t])
        at_a, dh0 = _batch_first(delta), torch.addcmul(delta[0].flatten(1) @ w_hh, dh[0], self.update[0])
        delta[:, :, 2] = self.new * dh
        return _batch_first(delta), at_a, dh0


def _arriving(dy: Tensor | None, like: Tensor) -> Tensor:
    """A copy of the gradient (b, t, features) with axes (t, b, features), to which later steps are added; or zeros."""
    copy = torch.empty_like(like, memory_format=torch.contiguous_format)
    return copy.zero_() if dy is None else copy.copy_(dy.transpose(0, 1))


def _last_to_first(dh: Tensor, delta: Tensor, w_hh: Tensor) -> Iterator[int]:
    """Each step t from the last to the first, with delta_{t+1} W_hh added to dh_t. The caller then writes delta_t."""
    for t in reversed(range(len(dh))):
        if t + 1 < len(dh):
            dh[t].addmm_(delta[t + 1], w_hh)
        yield t


def _batch_first(gradients: Tensor) -> Tensor:
    """A copy with axes (b, t, features), the gates of one step side by side."""
    return gradients.flatten(2).transpose(0, 1).clone(memory_format=torch.contiguous_format)
