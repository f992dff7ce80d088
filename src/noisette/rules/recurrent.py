"""Recurrent layers and cells, decomposed into two matrix products: W_ih times the input and W_hh times the states.

A layer still runs as one fused operation for each direction of each of its layers, and so computes the states h_t.
The two products are computed again from these for all steps at once, so that the rules of linear layers apply to them
with time as the position axis:

    z_t = W_ih x_t + b_ih,    a_t = W_hh h_{t-1} + b_hh,    for a plain layer h_t = tanh(z_t + a_t)

``recurrences`` then connects z and a to the states in the autograd graph.

A layer that is traced is unrolled instead: each step is a product with W_hh and the equations of a cell. A compiler
makes one pass over memory of each step, and has nothing to compute twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from noisette.core.forms import Operation, rewrite
from noisette.rules import recurrences
from noisette.rules.recurrences import KnownStates, connect
from noisette.rules.unrolled_recurrences import LayerWeights, Step, Unrolled

F = torch.nn.functional
Recurrence = Callable[[KnownStates], tuple[Tensor, ...]]

# Operations of a graph grow with the steps that are unrolled, and so does the time to compile it.
_UNROLLED_STEPS = 64


@dataclass(frozen=True)
class _Kind:
    """A kind of recurrent layer."""

    fused: Operation
    recurrence: Recurrence
    step: Step
    is_of_sum: bool = True  # whether the step takes z + a, and not the two products

    def layers(self, *args: Any) -> Any:
        """A stack of layers in one or two directions, one layer and direction at a time.

        ``args`` are those of the fused operation: input, states, weights, has_biases, num_layers, dropout, train,
        bidirectional and batch_first. Packed sequences, which have other arguments, do not run in ``vmap``.
        """
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

    def _with_known_states(
        self, x: Tensor, states: list[Tensor], weights: LayerWeights, batch_first: bool
    ) -> tuple[Tensor, ...]:
        """One layer in one direction: h_t, and for an LSTM c_t, with axes (b, t, features).

        ``x`` is (b, t, features) and ``states`` before the first step are (b, features).
        """
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
        """The same for a graph that is traced."""
        steps = Unrolled.run(self.step, self.is_of_sum, x.detach(), states, weights.detached)
        values = steps.values
        with torch.no_grad():
            before = torch.cat([states[0].unsqueeze(1), values[0][:, :-1]], 1)
        products = [F.linear(x, weights.w_ih, weights.b_ih), F.linear(before, weights.w_hh, weights.b_hh)]
        if weights.w_hr is not None:
            products.append(F.linear(steps.unprojected, weights.w_hr))
        return connect(steps, values, (weights.w_hh, weights.w_hr), (*products, *states))


def _simple_step(activation: Callable[[Tensor], Tensor]) -> Step:
    """h' = activation(z + a)."""
    return lambda products, states: (activation(products[0]),)


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


rewrite(torch.rnn_tanh)(_Kind(torch.rnn_tanh, recurrences.tanh, _simple_step(torch.tanh)).layers)
rewrite(torch.rnn_relu)(_Kind(torch.rnn_relu, recurrences.relu, _simple_step(torch.relu)).layers)
rewrite(torch.lstm)(_Kind(torch.lstm, recurrences.lstm, _lstm_step).layers)
rewrite(torch.gru)(_Kind(torch.gru, recurrences.gru, _gru_step, is_of_sum=False).layers)


def _simple_cell(activation: Callable[[Tensor], Tensor]) -> Operation:
    """h' = activation(z + a)."""

    def cell(
        input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
    ) -> Tensor:
        z, a, _ = _products(input, hx, w_ih, w_hh, b_ih, b_hh)
        return activation(z + a)

    return cell


rewrite(torch.rnn_tanh_cell)(_simple_cell(torch.tanh))
rewrite(torch.rnn_relu_cell)(_simple_cell(torch.relu))


@rewrite(torch.lstm_cell)
def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """A cell with the states h and c."""
    z, a, h = _products(input, hx[0], w_ih, w_hh, b_ih, b_hh)
    return _lstm_step((z + a,), (h, hx[1]))


@rewrite(torch.gru_cell)
def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """A cell with the state h."""
    z, a, h = _products(input, hx, w_ih, w_hh, b_ih, b_hh)
    return _gru_step((z, a), (h,))[0]


def _products(
    input: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The two products z and a of a cell, (b, gates), and its state h."""
    x, h = _as_data(input, h)
    return F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh), h


def _as_data(*tensors: Tensor) -> list[Tensor]:
    """The same values plus a zero that depends on all of them, so that each counts as data if any of them does.

    A learned state so becomes a use of that parameter. Zero states, a constant, become data: their product with W_hh
    is then a use of W_hh, and no derived weight without examples.
    """
    zero = torch.stack([tensor.new_zeros(()) for tensor in tensors]).sum()
    return [tensor + zero for tensor in tensors]
