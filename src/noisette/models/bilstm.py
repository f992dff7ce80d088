"""Texts read in both directions by an LSTM, plain or with layer norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette.models.blocks import sequence
from noisette.models.shapes import Shape

_UNITS = 32  # in each direction


def bilstm_dl(shape: Shape, classes: int, *, dropout: float = 0.2) -> nn.Module:
    """An LSTM in both directions, dropout, and a linear layer: 34,564 trainable numbers at 100 dimensions, 4 classes.

    The linear layer sees what 32 units hold after the last word and 32 others, reading backwards, after the first.

    Args:
        shape: (tokens, dimensions) of one text: each token is a word vector, from fixed embeddings for example.
        classes: scores for each text.
        dropout: share of the 64 numbers that are dropped in training. The 0.8 of the authors' code is taken for the
            share that is kept.

    Source: Davody et al. 2020, table 1 and published code.

    Raises:
        ValueError: examples are no sequences of vectors.
    """
    reader = LastStates(nn.LSTM(_dimensions("bilstm-dl", shape), _UNITS, batch_first=True, bidirectional=True))
    return sequence([("reader", reader), ("dropout", nn.Dropout(dropout)), ("scores", nn.Linear(2 * _UNITS, classes))])


def ln_bilstm_dl(shape: Shape, classes: int, *, dropout: float = 0.2) -> nn.Module:
    """:func:`bilstm_dl` with the LSTM of :class:`LayerNormLSTM`, and layer norm without scale and shift on the scores.

    Source: Davody et al. 2020, table 1 and published code.

    Raises:
        ValueError: examples are no sequences of vectors.
    """
    dimensions = _dimensions("ln-bilstm-dl", shape)
    reader = BothWays(LayerNormLSTM(dimensions, _UNITS), LayerNormLSTM(dimensions, _UNITS))
    return sequence(
        [
            ("reader", reader),
            ("dropout", nn.Dropout(dropout)),
            ("scores", nn.Linear(2 * _UNITS, classes)),
            ("scores_norm", nn.LayerNorm(classes, elementwise_affine=False)),
        ]
    )


class LastStates(nn.Module):
    """The last hidden states of a one-layer LSTM, all directions side by side: (b, tokens, numbers) to (b, units)."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.lstm(x)[1][0].unbind(), 1)


class BothWays(nn.Module):
    """What one module makes of a sequence (b, tokens, ...), beside what another makes of it read backwards."""

    def __init__(self, onward: nn.Module, backward: nn.Module) -> None:
        super().__init__()
        self.onward, self.backward = onward, backward

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.onward(x), self.backward(x.flip(1))], 1)


class LayerNormLSTM(nn.Module):
    """The last hidden state of an LSTM with layer norms, (b, tokens, inputs) to (b, units).

    Norms stand on what the input gives to the four gates, on what the hidden state gives to them, and on the cell
    before its tanh.

    Source: Ba et al. 2016, supplement.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.from_input, self.from_hidden = nn.Linear(inputs, 4 * units), nn.Linear(units, 4 * units)
        self.input_norm, self.hidden_norm = nn.LayerNorm(4 * units), nn.LayerNorm(4 * units)
        self.cell_norm = nn.LayerNorm(units)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(len(x), self.from_hidden.in_features)
        for from_input in self.input_norm(self.from_input(x)).unbind(1):
            gates = from_input + self.hidden_norm(self.from_hidden(hidden))
            let_in, keep, candidate, let_out = gates.chunk(4, 1)
            cell = keep.sigmoid() * cell + let_in.sigmoid() * candidate.tanh()
            hidden = let_out.sigmoid() * self.cell_norm(cell).tanh()
        return hidden


def _dimensions(name: str, shape: Shape) -> int:
    if len(shape) != 2:
        raise ValueError(
            f"the model {name!r} needs texts as word vectors (tokens, dimensions), got examples of shape {tuple(shape)}"
        )
    return shape[1]
