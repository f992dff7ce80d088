"""Recurrent layers and cells: gradients at their two matrix products, by one backward pass through time in closed form.

A layer is z_t = W_ih x_t + b_ih, a_t = W_hh h_{t-1} + b_hh, and a step that computes h_t from the two. The states are
already known when a function of this file is called. It returns them as outputs of an autograd function of z, a and the
states before the first step, whose backward pass gives the gradients at z and a: all that the products' rules need.

Example: h_t = tanh(z_t + a_t) with one feature, w = W_hh and three steps. With dy_t the gradient of the losses at h_t
and slope_t = 1 - h_t^2, the gradient at z_t and at a_t is delta_t = slope_t dh_t, from the last step to the first:

    dh_3 = dy_3,    dh_2 = dy_2 + w delta_3,    dh_1 = dy_1 + w delta_2,    at the first state: w delta_1

Axes: (b, t, features) outside; (t, b, features) inside, where a step is contiguous in memory. All factors that do not
depend on later steps are computed for all steps at once, so that the pass itself takes a few kernels per step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from noisette.core.forms import Operation, rewrite

F = torch.nn.functional
# gradient * y (1 - y) and gradient * (1 - y * y), in one kernel each
_SIGMOID_BACKWARD = torch.ops.aten.sigmoid_backward.grad_input
_TANH_BACKWARD = torch.ops.aten.tanh_backward.grad_input


# Of the weights W_hh and, of a projection, W_hr, and the gradients that arrive at the values: gradients at z, a, the
# product of a projection if there is one, and the states before the first step.
Backward = Callable[[Sequence[Tensor], Sequence[Tensor | None]], tuple[Tensor, ...]]


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

    def connected(self, gradients: Backward, values: Sequence[Tensor], *projected: Tensor) -> tuple[Tensor, ...]:
        """The values with this backward pass, as functions of z, a, the product of a projection and the states."""
        weights = [weight.detach() for weight in (self.w_hh, self.w_hr) if weight is not None]
        return _StatesFunction.apply(gradients, values, weights, self.z, self.a, *projected, *self.states)


class _StatesFunction(torch.autograd.Function):
    """States that are known already, as outputs of the tensors on which they depend."""

    @staticmethod
    def forward(
        ctx: Any, gradients: Backward, values: Sequence[Tensor], weights: Sequence[Tensor], *sources: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.gradients = gradients
        ctx.save_for_backward(*weights)  # so that a change of them before the backward pass is an error
        ctx.set_materialize_grads(False)
        output, *others = values
        return (output.clone() if output._is_view() else output, *others)  # a view would refuse in-place changes

    @staticmethod
    def backward(ctx: Any, *dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("a recorded recurrent layer has no second derivatives; take steps by a cell instead")
        return None, None, None, *ctx.gradients(ctx.saved_tensors, dy)


def tanh(known: KnownStates) -> tuple[Tensor, ...]:
    """h_t = tanh(z_t + a_t)."""
    output = known.by_time(known.output)
    ones = output.new_ones(()).expand_as(output)
    return _simple(known, _TANH_BACKWARD(ones, output, grad_input=torch.empty_like(output)))


def relu(known: KnownStates) -> tuple[Tensor, ...]:
    """h_t = max(z_t + a_t, 0)."""
    return _simple(known, (known.by_time(known.output) > 0).to(known.w_hh.dtype))


def _simple(known: KnownStates, slope: Tensor) -> tuple[Tensor, ...]:
    """delta_t = slope_t dh_t at z and at a, with the slope (t, b, feature)."""

    def gradients(weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        [w_hh] = weights
        dh = delta = _arriving(dy[0], slope)  # delta overwrites dh
        for t in _last_to_first(dh, delta, w_hh):
            delta[t] *= slope[t]
        at_products = _batch_first(delta)
        return at_products, at_products, delta[0] @ w_hh

    return known.connected(gradients, [known.output])


def lstm(known: KnownStates) -> tuple[Tensor, ...]:
    """c_t = s(f) c_{t-1} + s(i) tanh(g) and h_t = W_hr (s(o) tanh(c_t)), where i, f, g, o = z_t + a_t; returns h and c.

    s is the logistic function. Without a projection there is no W_hr. ``factors`` are the derivatives of c_t by the
    gates i, f and g before their activations, and of the unprojected h_t by o, (t, b, gate, feature).

    At z and at a, delta_t = factors_t dc_t for gates i, f and g, and factors_t dh_t for gate o, where
    dc_t = f_{t+1} dc_{t+1} + through_t dh_t + the gradient of the losses at c_t, with dh_t before the projection.
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
    through = _TANH_BACKWARD(o, squashed, grad_input=fresh)  # the derivative of h_t by c_t
    values = [known.output, cells[1:].transpose(0, 1)]
    projected = () if known.w_hr is None else (F.linear((o * squashed).transpose(0, 1), known.w_hr),)
    forget = f.contiguous()  # the other gates are not held

    def gradients(weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        w_hh, *w_hr = weights
        delta, dc = torch.empty_like(factors), torch.zeros_like(through[0])
        dh = _arriving(dy[0], through[..., :1].expand(-1, -1, w_hh.shape[1]))
        dcells = None if dy[1] is None else _arriving(dy[1], through)
        for t in _last_to_first(dh, delta.flatten(2), w_hh):
            unprojected = dh[t] @ w_hr[0] if w_hr else dh[t]
            if dcells is not None:
                dc += dcells[t]
            dc.addcmul_(unprojected, through[t])
            torch.mul(factors[t, :, :3], dc.unsqueeze(1), out=delta[t, :, :3])
            torch.mul(factors[t, :, 3], unprojected, out=delta[t, :, 3])
            dc *= forget[t]
        at_products = _batch_first(delta)
        return at_products, at_products, *([_batch_first(dh)] if w_hr else []), delta[0].flatten(1) @ w_hh, dc

    return known.connected(gradients, values, *projected)


def gru(known: KnownStates) -> tuple[Tensor, ...]:
    """h_t = (1 - s(u)) tanh(n) + s(u) h_{t-1}, where r, u = z_t + a_t and n = z_t + s(r) a_t by thirds of z, a.

    ``factors`` are the derivatives of h_t by r, u and n before their activations, at a, (t, b, gate, feature).

    delta_t = factors_t dh_t at a; at z the part of n is without the factor r. h_{t-1} gets u_t dh_t in addition.
    """
    b, length, width = known.z.shape
    z, a = (known.by_time(product).unflatten(2, (3, width // 3)) for product in (known.z, known.a))
    r, u = (z[:, :, :2] + a[:, :, :2]).sigmoid_().unbind(2)
    hidden = a[:, :, 2]
    n = torch.addcmul(z[:, :, 2], r, hidden).tanh_()
    factors = known.w_hh.new_empty(length, b, 3, width // 3)
    new = _TANH_BACKWARD(1 - u, n, grad_input=torch.empty_like(n))  # the derivative of h_t by n before its activation
    torch.mul(new, r, out=factors[:, :, 2])
    _SIGMOID_BACKWARD(known.by_time(known.before).sub(n), u, grad_input=factors[:, :, 1])
    _SIGMOID_BACKWARD(new * hidden, r, grad_input=factors[:, :, 0])
    update = u.contiguous()

    def gradients(weights: Sequence[Tensor], dy: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        [w_hh], delta = weights, torch.empty_like(factors)
        dh = _arriving(dy[0], new)
        for t in _last_to_first(dh, delta.flatten(2), w_hh):
            if t + 1 < len(dh):
                dh[t].addcmul_(dh[t + 1], update[t + 1])
            torch.mul(factors[t], dh[t].unsqueeze(1), out=delta[t])
        at_a, dh0 = _batch_first(delta), torch.addcmul(delta[0].flatten(1) @ w_hh, dh[0], update[0])
        delta[:, :, 2] = new * dh
        return _batch_first(delta), at_a, dh0

    return known.connected(gradients, [known.output])


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


# Of the products, z and a or their sum alone, and the states; gives the new states, h before its projection.
Step = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, ...]]


class LayerWeights(NamedTuple):
    """The weights of one layer in one direction."""

    listed: list[Tensor]  # all of them, in the order of the fused operation
    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor | None
    b_hh: Tensor | None
    w_hr: Tensor | None  # of an LSTM whose h_t is projected

    @classmethod
    def of(cls, listed: list[Tensor], has_biases: bool) -> Self:
        b_ih, b_hh = listed[2:4] if has_biases else (None, None)
        return cls(listed, listed[0], listed[1], b_ih, b_hh, listed[-1] if len(listed) % 2 else None)


@dataclass(frozen=True)
class _OneStep:
    """One step as a graph of its own."""

    products: Sequence[Tensor]
    before: Sequence[Tensor]  # the states
    after: Sequence[Tensor]

    def gradients(self, dafter: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor | None]]:
        arriving = [(state, dy) for state, dy in zip(self.after, dafter, strict=True) if dy is not None]
        states, dys = zip(*arriving, strict=True)
        sources = (*self.products, *self.before)
        found: list[Any] = list(torch.autograd.grad(states, sources, dys, retain_graph=True, allow_unused=True))
        return found[: len(self.products)], found[len(self.products) :]


@torch.no_grad()
def _steps(
    step: Step, is_of_sum: bool, x: Tensor, states: Sequence[Tensor], weights: LayerWeights
) -> tuple[list[_OneStep], list[Tensor]]:
    """The steps of one layer in one direction, and its values: h, for an LSTM also c, (b, t, features)."""
    now, steps, each = [state.detach() for state in states], [], []
    w_hh, b_hh, w_hr = weights.w_hh, weights.b_hh, weights.w_hr
    # Matrix products take a step out of a tensor by themselves; a pointwise kernel would be compiled for each step.
    both = None if weights.b_ih is None or b_hh is None else weights.b_ih + b_hh
    known = F.linear(x, weights.w_ih, both) if is_of_sum else x
    for of_step in known.unbind(1):
        if is_of_sum:
            products = [torch.addmm(of_step, now[0], w_hh.t())]
        else:
            products = [F.linear(of_step, weights.w_ih, weights.b_ih), F.linear(now[0], w_hh, b_hh)]
        products, before = ([tensor.detach().requires_grad_() for tensor in of] for of in (products, now))
        with torch.enable_grad():
            steps.append(_OneStep(products, before, step(products, before)))
        now = [state.detach() for state in steps[-1].after]
        now[0] = now[0] if w_hr is None else F.linear(now[0], w_hr)
        each.append(now)
    return steps, [torch.stack(of_state, 1) for of_state in zip(*each, strict=True)]


def _back_through(
    steps: Sequence[_OneStep], h: Tensor, weights: Sequence[Tensor], dy: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """The :data:`Backward` of these steps with the states h, (b, t, features)."""
    w_hh, *w_hr = weights
    outside = [None if of_value is None else of_value.unbind(1) for of_value in dy]
    dstates: list[Tensor | None] = [None] * len(dy)  # what the later steps give
    dproducts: list[list[Tensor]] = []
    dh: list[Tensor] = []
    for t in reversed(range(len(steps))):
        dstates = [_sum(None if of is None else of[t], d) for of, d in zip(outside, dstates, strict=True)]
        dh.append(torch.zeros_like(h[:, t]) if dstates[0] is None else dstates[0])
        dstates[0] = dh[-1] @ w_hr[0] if w_hr else dh[-1]
        at_products, dstates = steps[t].gradients(dstates)
        dstates[0] = _sum(at_products[-1] @ w_hh, dstates[0])
        dproducts.append(at_products)
    at_z, *at_a = (torch.stack(of_product, 1) for of_product in zip(*reversed(dproducts), strict=True))
    projected = [torch.stack(dh[::-1], 1)] if w_hr else []
    first = [d for d in dstates if d is not None]
    assert len(first) == len(dstates)
    return at_z, at_a[0] if at_a else at_z, *projected, *first


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


_UNROLLED_STEPS = 64  # operations of a graph, and the time to compile it, grow with the steps that are unrolled


@dataclass(frozen=True)
class _Kind:
    """A kind of recurrent layer."""

    fused: Operation
    recurrence: Callable[[KnownStates], tuple[Tensor, ...]]
    step: Step
    is_of_sum: bool = True  # whether the step takes z + a, and not the two products

    def layers(self, *args: Any) -> Any:
        """A stack of layers in one or two directions, one layer and direction at a time.

        ``args`` are those of the fused operation: input, states, weights, has_biases, num_layers, dropout, train,
        bidirectional and batch_first; or of a packed sequence: its elements, batch sizes, states, weights, and so on.
        """
        if isinstance(args[3], list | tuple):  # packed, of one example: a sequence (t, 1, features)
            elements, _, hx, *others = args
            output, *final = self.fused(elements.unsqueeze(1), hx, *others, False)
            return output.squeeze(1), *final
        if not torch.is_grad_enabled() or not isinstance(args[3], bool):
            return NotImplemented
        input, hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first = args
        states = [hx] if isinstance(hx, Tensor) else hx
        x = input if batch_first else input.transpose(0, 1)
        x, *states = _as_data(x, *(state.transpose(0, 1) for state in states))
        directions = 2 if bidirectional else 1
        each = len(weights) // (num_layers * directions)
        is_short = x.shape[1] * num_layers * directions <= _UNROLLED_STEPS
        # The fused operation rounds differently in autocast than its equations do.
        is_unrolled = get_proxy_mode() is not None and is_short and not torch.is_autocast_enabled(x.device.type)
        final: list[Sequence[Tensor]] = []
        for layer in range(num_layers):
            if layer and dropout:  # a mask is drawn in the order of memory, which is to be the same in a graph
                x = F.dropout(x.contiguous(), dropout, train)
            outputs = []
            for direction in range(directions):
                k = len(final)
                before_first = [state[:, k] for state in states]
                own_weights = LayerWeights.of(weights[k * each : (k + 1) * each], has_biases)
                turned = x.flip(1) if direction else x
                if is_unrolled:
                    values = self._unrolled(turned, before_first, own_weights)
                else:
                    values = self._with_known_states(turned, before_first, own_weights, batch_first)
                outputs.append(values[0].flip(1) if direction else values[0])
                final.append([value[:, -1] for value in values])
            x = torch.cat(outputs, 2) if bidirectional else outputs[0]
        output = x if batch_first else x.transpose(0, 1).contiguous()
        return output, *(torch.stack(states) for states in zip(*final, strict=True))

    def cell(
        self, input: Tensor, hx: Any, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """One step of a layer, from its states: h, for an LSTM also c."""
        h, *others = (hx,) if isinstance(hx, Tensor) else hx
        x, h = _as_data(input, h)
        z, a = F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh)
        after = self.step((z + a,) if self.is_of_sum else (z, a), (h, *others))
        return after[0] if isinstance(hx, Tensor) else after

    def _with_known_states(
        self, x: Tensor, states: list[Tensor], weights: LayerWeights, batch_first: bool
    ) -> tuple[Tensor, ...]:
        """One layer in one direction of x (b, t, features): h_t, for an LSTM also c_t, (b, t, features)."""
        with torch.no_grad():
            before_first = [state.unsqueeze(0) for state in states]
            hx = before_first if len(states) > 1 else before_first[0]
            # In the order of axes of the layer, so that its kernel, and rounding, is the one that a plain call has.
            x_given = x if batch_first else x.transpose(0, 1).contiguous()
            has_biases = weights.b_ih is not None
            output = self.fused(x_given, hx, weights.listed, has_biases, 1, 0.0, False, False, batch_first)[0]
            output = output if batch_first else output.transpose(0, 1)
            before = output.new_empty(output.shape)
            before[:, 0], before[:, 1:] = states[0], output[:, :-1]
        z, a = F.linear(x, weights.w_ih, weights.b_ih), F.linear(before, weights.w_hh, weights.b_hh)
        return self.recurrence(KnownStates(z, a, before, states, output, weights.w_hh.detach(), weights.w_hr))

    def _unrolled(self, x: Tensor, states: list[Tensor], weights: LayerWeights) -> tuple[Tensor, ...]:
        """The same, by single steps that have a graph each."""
        detached = LayerWeights.of([weight.detach() for weight in weights.listed], weights.b_ih is not None)
        steps, values = _steps(self.step, self.is_of_sum, x.detach(), states, detached)
        with torch.no_grad():
            before = torch.cat([states[0].unsqueeze(1), values[0][:, :-1]], 1)
            unprojected = torch.stack([one.after[0].detach() for one in steps], 1)
        z, a = F.linear(x, weights.w_ih, weights.b_ih), F.linear(before, weights.w_hh, weights.b_hh)
        projected = () if weights.w_hr is None else (F.linear(unprojected, weights.w_hr),)
        known = KnownStates(z, a, before, states, values[0], weights.w_hh, weights.w_hr)
        return known.connected(partial(_back_through, steps, values[0]), values, *projected)


def _lstm_step(products: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """i, f, g, o = z + a; c' = s(f) c + s(i) tanh(g); h' = s(o) tanh(c')."""
    i, f, g, o = products[0].chunk(4, -1)
    c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru_step(products: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """n = tanh(z_n + s(z_r + a_r) a_n); h' = (1 - u) n + u h with u = s(z_u + a_u)."""
    (z_r, z_u, z_n), (a_r, a_u, a_n) = (product.chunk(3, -1) for product in products)
    n = (z_n + (z_r + a_r).sigmoid() * a_n).tanh()
    return (n + (z_u + a_u).sigmoid() * (states[0] - n),)


for _layer, _cell, _kind in (
    (torch.rnn_tanh, torch.rnn_tanh_cell, _Kind(torch.rnn_tanh, tanh, lambda products, _: (torch.tanh(products[0]),))),
    (torch.rnn_relu, torch.rnn_relu_cell, _Kind(torch.rnn_relu, relu, lambda products, _: (torch.relu(products[0]),))),
    (torch.lstm, torch.lstm_cell, _Kind(torch.lstm, lstm, _lstm_step)),
    (torch.gru, torch.gru_cell, _Kind(torch.gru, gru, _gru_step, is_of_sum=False)),
):
    rewrite(_layer)(_kind.layers)
    rewrite(_cell)(_kind.cell)


def _as_data(*tensors: Tensor) -> list[Tensor]:
    """The same values plus a zero that depends on all of them, so that each counts as data if any of them does.

    A learned state so becomes a use of that parameter. Zero states, a constant, become data: their product with W_hh
    is then a use of W_hh, and no derived weight without examples.
    """
    zero = torch.stack([tensor.new_zeros(()) for tensor in tensors]).sum()
    return [tensor + zero for tensor in tensors]
