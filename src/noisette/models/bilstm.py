"""Bidirectional LSTMs for texts, plain or with layer norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette.models.blocks import sequence
from noisette.models.shapes import Shape, need_axes

_UNITS = 32  # in each direction


def bilstm_dl(shape: Shape, classes: int, *, dropout: float = 0.2) -> nn.Module:
    """A bidirectional LSTM, dropout, and a linear layer: 34,564 parameters for 100 dimensions and 4 classes.

    The linear layer has as inputs the last states of 32 units that read forwards and of 32 that read backwards.

    Args:
        shape: (tokens, dimensions) of one text: each token is a word vector, from fixed embeddings for example.
        classes: number of scores for each text.
        dropout: probability of dropping each of the 64 states in training. The 0.8 in the authors' code is taken as the
            probability of keeping one.

    Source: Davody et al. 2020, table 1 and published code.

    Raises:
        ValueError: examples are not sequences of vectors.
    """
    reader = LastStates(nn.LSTM(_word_size("bilstm-dl", shape), _UNITS, batch_first=True, bidirectional=True))
    return sequence([("reader", reader), ("dropout", nn.Dropout(dropout)), ("scores", nn.Linear(2 * _UNITS, classes))])


def ln_bilstm_dl(shape: Shape, classes: int, *, dropout: float = 0.2) -> nn.Module:
    """:func:`bilstm_dl` with :class:`LayerNormLSTM`, and layer norm without scale and shift on the scores.

    Source: Davody et al. 2020, table 1 and published code.

    Raises:
        ValueError: examples are not sequences of vectors.
    """
    word = _word_size("ln-bilstm-dl", shape)
    reader = BothWays(LayerNormLSTM(word, _UNITS), LayerNormLSTM(word, _UNITS))
    return sequence(
        [
            ("reader", reader),
            ("dropout", nn.Dropout(dropout)),
            ("scores", nn.Linear(2 * _UNITS, classes)),
            ("scores_norm", nn.LayerNorm(classes, elementwise_affine=False)),
        ]
    )


class LastStates(nn.Module):
    """The last hidden states of a one-layer LSTM, directions concatenated: (b, tokens, dimensions) to (b, units)."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.lstm(x)[1][0].unbind(), 1)


class BothWays(nn.Module):
    """One module on a sequence (b, tokens, ...) and another on the reversed sequence, outputs concatenated."""

    def __init__(self, onward: nn.Module, backward: nn.Module) -> None:
        super().__init__()
        self.onward, self.backward = onward, backward

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.onward(x), self.backward(x.flip(1))], 1)


class LayerNormLSTM(nn.Module):
    """The last hidden state of an LSTM with layer norms, (b, tokens, inputs) to (b, units).

    Layer norms apply to the contributions of the input and of the hidden state to the four gates, and to the cell
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
            input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 1)
            cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
            hidden = output_gate.sigmoid() * self.cell_norm(cell).tanh()
        return hidden


def _word_size(name: str, shape: Shape) -> int:
    need_axes(name, shape, 2, "texts as word vectors (tokens, dimensions)")
    return shape[1]
