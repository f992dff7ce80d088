"""Recurrent layers and cells, as the two matrix products they hide: W_ih times the input and W_hh times the states.

A layer still runs as one fused operation for each direction of each of its layers. The products are formed again
beside it, for all steps at once, so that the rules of linear layers see them: time is their position axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from noisette.gradients.rules import recurrences
from noisette.gradients.rules.recurrences import Known
from noisette.gradients.rules.registry import Operation, rewrite

F = torch.nn.functional


@dataclass(frozen=True)
class _Rectangle:
    """Sequences of one length, in one tensor."""

    batch_first: bool

    def enter(self, tensor: Tensor) -> Tensor:
        """The tensor with axes (b, t, features)."""
        return tensor if self.batch_first else tensor.transpose(0, 1)

    def leave(self, tensor: Tensor) -> Tensor:
        """The tensor as the operation had it."""
        return tensor if self.batch_first else tensor.transpose(0, 1).contiguous()

    def run(self, operation: Operation, x: Tensor, *rest: Any) -> Tensor:
        """Output of the fused operation, for one layer and direction without dropout."""
        return self.enter(operation(self.leave(x), *rest, 1, 0.0, False, False, self.batch_first)[0])

    def reverse(self, tensor: Tensor) -> Tensor:
        """Each sequence from its last step to its first."""
        return tensor.flip(1)

    def last(self, tensor: Tensor) -> Tensor:
        """The last step of each sequence."""
        return tensor[:, -1]


@dataclass(frozen=True)
class _Packed:
    """Sequences of several lengths, longest first, packed step by step; padded with zeros in here."""

    batch_sizes: Tensor

    @property
    def _lengths(self) -> Tensor:
        return (self.batch_sizes.unsqueeze(1) > torch.arange(int(self.batch_sizes[0]))).sum(0)

    def enter(self, tensor: Tensor) -> Tensor:
        return torch._VF._pad_packed_sequence(tensor, self.batch_sizes, True, 0.0, len(self.batch_sizes))[0]

    def leave(self, tensor: Tensor) -> Tensor:
        return torch._VF._pack_padded_sequence(tensor, self._lengths, True)[0]

    def run(self, operation: Operation, x: Tensor, *rest: Any) -> Tensor:
        return self.enter(operation(self.leave(x), self.batch_sizes, *rest, 1, 0.0, False, False)[0])

    def reverse(self, tensor: Tensor) -> Tensor:
        lengths, t = self._lengths.unsqueeze(1), torch.arange(len(self.batch_sizes))
        order = torch.where(t < lengths, lengths - 1 - t, t)  # padding stays where it is
        return tensor.gather(1, order.to(tensor.device).unsqueeze(2).expand_as(tensor))

    def last(self, tensor: Tensor) -> Tensor:
        return tensor[torch.arange(tensor.shape[0]), self._lengths - 1]


def _layers(operation: Operation, recurrence: Callable[[Known], tuple[Tensor, ...]], *args: Any) -> Any:
    """A stack of layers in one or two directions, taken one by one."""
    if not torch.is_grad_enabled():
        return NotImplemented
    if isinstance(args[3], bool):
        input, *rest, batch_first = args
        sequences = _Rectangle(batch_first)
    else:
        input, batch_sizes, *rest = args
        sequences = _Packed(batch_sizes)
    hx, weights, has_biases, num_layers, dropout, train, bidirectional = rest
    states = [hx] if isinstance(hx, Tensor) else hx
    x, *states = _as_data(sequences.enter(input), *(state.transpose(0, 1) for state in states))
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    final: list[Sequence[Tensor]] = []
    for layer in range(num_layers):
        x = F.dropout(x, dropout, train) if layer and dropout else x
        outputs = []
        for direction in range(directions):
            turned = sequences.reverse if direction else _unchanged
            k = len(final)
            values = _layer(
                operation,
                recurrence,
                sequences,
                turned(x),
                [state[:, k] for state in states],
                weights[k * each : (k + 1) * each],
                has_biases,
            )
            outputs.append(turned(values[0]))
            final.append([sequences.last(value) for value in values])
        x = torch.cat(outputs, 2) if bidirectional else outputs[0]
    return sequences.leave(x), *(torch.stack(states) for states in zip(*final, strict=True))


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _layer(
    operation: Operation,
    recurrence: Callable[[Known], tuple[Tensor, ...]],
    sequences: _Rectangle | _Packed,
    x: Tensor,
    states: list[Tensor],
    weights: list[Tensor],
    has_biases: bool,
) -> tuple[Tensor, ...]:
    """One layer in one direction: h_t, for an LSTM also c_t, with axes (b, t, features)."""
    w_ih, w_hh = weights[:2]
    b_ih, b_hh = weights[2:4] if has_biases else (None, None)
    w_hr = weights[-1] if len(weights) % 2 else None
    with torch.no_grad():
        before_first = [state.unsqueeze(0) for state in states]
        hx = before_first if len(states) > 1 else before_first[0]
        output = sequences.run(operation, x, hx, weights, has_biases)
        before = output.new_empty(output.shape)
        before[:, 0], before[:, 1:] = states[0], output[:, :-1]
    z, a = F.linear(x, w_ih, b_ih), F.linear(before, w_hh, b_hh)
    return recurrence(Known(z, a, before, states, output, w_hh.detach(), w_hr))


rewrite(torch.rnn_tanh)(partial(_layers, torch.rnn_tanh, recurrences.tanh))
rewrite(torch.rnn_relu)(partial(_layers, torch.rnn_relu, recurrences.relu))
rewrite(torch.lstm)(partial(_layers, torch.lstm, recurrences.lstm))
rewrite(torch.gru)(partial(_layers, torch.gru, recurrences.gru))


@rewrite(torch.rnn_tanh_cell)
def rnn_tanh_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """h' = tanh(z + a)."""
    z, a, _ = _cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    return (z + a).tanh()


@rewrite(torch.rnn_relu_cell)
def rnn_relu_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """h' = max(z + a, 0)."""
    z, a, _ = _cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    return (z + a).relu()


@rewrite(torch.lstm_cell)
def lstm_cell(
    input: Tensor,
    hx: Sequence[Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """i, f, g, o = z + a; c' = s(f) c + s(i) tanh(g); h' = s(o) tanh(c')."""
    z, a, _ = _cell(input, hx[0], w_ih, w_hh, b_ih, b_hh)
    i, f, g, o = (z + a).chunk(4, -1)
    c = f.sigmoid() * hx[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


@rewrite(torch.gru_cell)
def gru_cell(
    input: Tensor, hx: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None, b_hh: Tensor | None = None
) -> Tensor:
    """n = tanh(z_n + s(z_r + a_r) a_n); h' = (1 - u) n + u h with u = s(z_u + a_u)."""
    z, a, h = _cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    (z_r, z_u, z_n), (a_r, a_u, a_n) = z.chunk(3, -1), a.chunk(3, -1)
    n = (z_n + (z_r + a_r).sigmoid() * a_n).tanh()
    return n + (z_u + a_u).sigmoid() * (h - n)


def _cell(
    input: Tensor, h: Tensor, w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    x, h = _as_data(input, h)
    return F.linear(x, w_ih, b_ih), F.linear(h, w_hh, b_hh), h


def _as_data(*tensors: Tensor) -> list[Tensor]:
    """The same values, each made of some data at least.

    A state that is a weight becomes a use by this, and a product of a weight with constant zeros does not count as a
    weight for each example.
    """
    nothing = torch.stack([tensor.new_zeros(()) for tensor in tensors]).sum()
    return [tensor + nothing for tensor in tensors]
