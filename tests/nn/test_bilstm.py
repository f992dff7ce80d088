"""The bidirectional LSTMs, compared with their equations."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette.nn import models

TEXT = (5, 6)


def one_word_after_another(x: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    """The last hidden state of a plain LSTM."""
    h = c = torch.zeros(len(x), u.shape[1])
    for t in range(x.shape[1]):
        i, f, g, o = (x[:, t] @ w.T + h @ u.T + b).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    return h


def normal(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * scale + shift


def randomised(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.eval()


def test_the_scores_use_the_last_states_of_both_directions() -> None:
    model, x = randomised(models.build("bilstm-dl", TEXT, 4)), torch.randn(3, *TEXT)
    p = {name.removeprefix("reader.lstm."): value for name, value in model.named_parameters()}
    states = [
        one_word_after_another(
            words, p[f"weight_ih_l0{way}"], p[f"weight_hh_l0{way}"], p[f"bias_ih_l0{way}"] + p[f"bias_hh_l0{way}"]
        )
        for words, way in ((x, ""), (x.flip(1), "_reverse"))
    ]
    torch.testing.assert_close(model(x), torch.cat(states, 1) @ model.scores.weight.T + model.scores.bias)


def test_layer_norms_apply_to_both_parts_of_the_gates_and_to_the_cell() -> None:
    lstm, x = randomised(models.LayerNormLSTM(6, 7)), torch.randn(3, *TEXT)
    h = c = torch.zeros(3, 7)
    for t in range(5):
        from_input = normal(lstm.from_input(x[:, t]), lstm.input_norm.weight, lstm.input_norm.bias)
        from_hidden = normal(lstm.from_hidden(h), lstm.hidden_norm.weight, lstm.hidden_norm.bias)
        i, f, g, o = (from_input + from_hidden).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(normal(c, lstm.cell_norm.weight, lstm.cell_norm.bias))
    torch.testing.assert_close(lstm(x), h)


def test_with_layer_norm_each_direction_has_its_own_weights_and_the_scores_a_norm_of_their_own() -> None:
    model, x = randomised(models.build("ln-bilstm-dl", TEXT, 4)), torch.randn(3, *TEXT)
    onward, backward = model.reader.onward, model.reader.backward
    read = torch.cat([onward(x), backward(torch.stack([x[:, t] for t in (4, 3, 2, 1, 0)], 1))], 1)
    scores = read @ model.scores.weight.T + model.scores.bias
    torch.testing.assert_close(model(x), normal(scores, torch.ones(4), torch.zeros(4)))


def test_the_dropout_probability_is_one_fifth() -> None:
    for name in ("bilstm-dl", "ln-bilstm-dl"):
        assert models.build(name, TEXT, 4).dropout.p == 0.2
