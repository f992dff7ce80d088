"""Decomposed recurrent operations have the outputs of the operations, with every option."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from noisette.core.forms import REWRITES
from rule_oracle import double

B, T, FEATURES, H, P = 3, 5, 2, 4, 3
GATES = {torch.rnn_tanh: 1, torch.rnn_relu: 1, torch.lstm: 4, torch.gru: 3}
CELLS = {torch.rnn_tanh_cell: 1, torch.rnn_relu_cell: 1, torch.lstm_cell: 4, torch.gru_cell: 3}


def name(operation: Any) -> str:
    return getattr(operation, "__name__", str(operation))


def weights_of(gates: int, layers: int, directions: int, biases: bool, width: int) -> list[Tensor]:
    weights = []
    for layer in range(layers):
        size = directions * width if layer else FEATURES
        for _ in range(directions):
            weights += [double(gates * H, size), double(gates * H, width)]
            weights += [double(gates * H), double(gates * H)] if biases else []
            weights += [double(width, H)] if width != H else []
    return weights


@pytest.mark.parametrize("operation", [*GATES, "projected lstm"], ids=name)
def test_layers(operation: Any) -> None:
    width = P if operation == "projected lstm" else H
    operation = torch.lstm if width == P else operation
    for layers, directions, biases, batch_first in itertools.product((1, 2), (1, 2), (True, False), (True, False)):
        weights = weights_of(GATES[operation], layers, directions, biases, width)
        h, c = double(layers * directions, B, width), double(layers * directions, B, H)
        rest = ((h, c) if operation is torch.lstm else h, weights, biases, layers, 0.0, True, directions == 2)
        call = (double(*((B, T) if batch_first else (T, B)), FEATURES), *rest, batch_first)
        apart = REWRITES[operation](*call)
        torch.testing.assert_close(apart, operation(*call))
        assert apart[0].is_contiguous() or batch_first


@pytest.mark.parametrize("operation", CELLS, ids=name)
def test_cells(operation: Any) -> None:
    gates = CELLS[operation]
    h, c = double(B, H), double(B, H)
    weights = [double(gates * H, FEATURES), double(gates * H, H)]
    for biases in ([], [double(gates * H), double(gates * H)]):
        call = (double(B, FEATURES), (h, c) if gates == 4 else h, *weights, *biases)
        torch.testing.assert_close(REWRITES[operation](*call), operation(*call))


def test_nothing_is_decomposed_without_gradients() -> None:
    call = (double(T, B, FEATURES), double(1, B, H), weights_of(1, 1, 1, True, H), True, 1, 0.0, True, False, False)
    with torch.no_grad():
        assert REWRITES[torch.rnn_tanh](*call) is NotImplemented
