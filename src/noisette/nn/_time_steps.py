"""Recurrent layers computed step by step, with new weights drawn around the layer's parameters in each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from noisette.core.loss import outside
from noisette.errors import PrivacyError

F = nn.functional
_CELLS: dict[str, Callable[..., Any]] = {
    "LSTM": torch.lstm_cell,
    "GRU": torch.gru_cell,
    "RNN_TANH": torch.rnn_tanh_cell,
    "RNN_RELU": torch.rnn_relu_cell,
}


@dataclass(frozen=True, eq=False)
class TimeSteps:
    """Replaces the forward method of a recurrent layer, with the same arguments and results.

    Args:
        layer: ``nn.LSTM`` without projection, ``nn.GRU`` or ``nn.RNN``.
        sigma: standard deviation of the noise on weights and biases.
    """

    layer: nn.RNNBase
    sigma: float

    @staticmethod
    def fit(layer: nn.RNNBase) -> bool:
        """Whether the layer can be computed step by step: it has no projection and no forward method of its own."""
        return not layer.proj_size and type(layer).forward in (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)

    def hold(self, module: nn.Module) -> None:
        """Called where a private batch begins.

        Raises:
            PrivacyError: always, since which records share a draw would depend on how many come before them.
        """
        raise PrivacyError(
            "WeightNoise(each_time_step=True) of a recurrent layer draws noise for each microbatch anew, and which "
            "records share it depends on the others; leave each_time_step out, and the noise is that of the whole batch"
        )

    def let_go(self) -> None:
        """Nothing is held."""

    def __call__(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """What the layer returns for these arguments."""
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        batch = 0 if self.layer.batch_first else 1
        if input.dim() == 2:
            output, last = self(input.unsqueeze(batch), _each(hx, lambda state: state.unsqueeze(1)))
            return output.squeeze(batch), _each(last, lambda state: state.squeeze(1))
        outputs, last = self._layers(input.unbind(1 - batch), hx, None)
        return torch.stack(outputs, 1 - batch), last

    def _packed(self, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        """Sequences of several lengths, padded, so that each step computes all of them."""
        padded, lengths = pad_packed_sequence(PackedSequence(input.data, input.batch_sizes))  # longest first
        outputs, last = self._layers(padded.unbind(), _in_order(hx, input.sorted_indices), lengths)
        data = pack_padded_sequence(torch.stack(outputs), lengths).data
        return (
            PackedSequence(data, input.batch_sizes, input.sorted_indices, input.unsorted_indices),
            _in_order(last, input.unsorted_indices),
        )

    def _layers(self, steps: Sequence[Tensor], hx: Any, lengths: Tensor | None) -> tuple[list[Tensor], Any]:
        """Outputs (b, features) at each step, and the last states of every layer and direction."""
        layer, directions = self.layer, 2 if self.layer.bidirectional else 1
        if hx is None:
            zeros = steps[0].new_zeros(layer.num_layers * directions, len(steps[0]), layer.hidden_size)
            hx = (zeros, zeros) if layer.mode == "LSTM" else zeros
        last: list[Any] = []
        for number in range(layer.num_layers):
            if number and layer.dropout:
                steps = [F.dropout(x, layer.dropout, layer.training) for x in steps]
            outputs = []
            for direction in range(directions):
                first = _each(hx, lambda state: state[len(last)])
                found, states = self._direction(steps, first, layer.all_weights[len(last)], lengths, direction == 1)
                outputs.append(found)
                last.append(states)
            steps = [torch.cat(both, 1) for both in zip(*outputs, strict=True)]
        if layer.mode == "LSTM":
            return list(steps), tuple(torch.stack(states) for states in zip(*last, strict=True))
        return list(steps), torch.stack(last)

    def _direction(
        self, steps: Sequence[Tensor], states: Any, means: Sequence[Tensor], lengths: Tensor | None, backwards: bool
    ) -> tuple[list[Tensor], Any]:
        """One layer in one direction: its outputs in the order of time, and its last states."""
        outputs: list[Tensor] = []
        times = range(len(steps))
        for t in reversed(times) if backwards else times:
            with outside():  # of a vectorised loss, in which each example would have a draw of its own
                noises = [self.sigma * torch.randn_like(mean) for mean in means]
            weights = [mean + noise for mean, noise in zip(means, noises, strict=True)]
            new = _CELLS[self.layer.mode](steps[t], states, *weights)
            states = new if lengths is None else _where(lengths.to(steps[t].device) > t, new, states)
            outputs.append(states[0] if self.layer.mode == "LSTM" else states)
        return outputs[::-1] if backwards else outputs, states


def _each(states: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The function of the state, or of both states of an LSTM."""
    if isinstance(states, Tensor):
        return function(states)
    return None if states is None else tuple(function(state) for state in states)


def _in_order(states: Any, order: Tensor | None) -> Any:
    return states if order is None else _each(states, lambda state: state.index_select(1, order))


def _where(runs: Tensor, new: Any, old: Any) -> Any:
    """New states of the sequences that run, old ones of those that have ended or not begun."""
    if isinstance(new, Tensor):
        return torch.where(runs.unsqueeze(1), new, old)
    return tuple(_where(runs, *pair) for pair in zip(new, old, strict=True))
