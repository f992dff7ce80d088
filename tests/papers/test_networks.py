"""The networks of the papers: their layers, sizes and first weights, and their clipped sums."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from engine_check import check
from model_cases import Case, cross_entropy, labelled
from noisette.clipping.engines import BookKeeping
from noisette.nn import models
from papers import networks
from papers.networks import LayerNormLSTM

IMAGE, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (5, 6)
# Shape of an example, classes, and the number of parameters as published.
PUBLISHED = {
    "mlp1000": ((60,), 10, 70_000),
    "lenet-300-100": (IMAGE, 10, 266_610),
    "bn-lenet-300-100": (IMAGE, 10, 266_610 + 2 * (300 + 100 + 10)),
    "lenet-5": (IMAGE, 10, 61_706),
    "ln-lenet-5": (IMAGE, 10, 61_706 + 2 * (6 + 16 + 120 + 84 + 10)),
    "cifar-tutorial": (COLOUR, 10, 1_144_138),
    "bn-cifar-tutorial": (COLOUR, 10, 1_144_138 + 2 * (64 + 64 + 384 + 384 + 10)),
    "tf-tutorial": (COLOUR, 10, 1_068_298),
    "ln-tf-tutorial": (COLOUR, 10, 1_068_298 + 2 * (64 + 64 + 384 + 192 + 10)),
    "resnet-18-mod": (COLOUR, 10, 11_173_962 - 2 * 512),
    "bn-resnet-18": (COLOUR, 10, 11_173_962 + 2 * 10),
    "vgg-16": (COLOUR, 10, 14_728_266),
    "vgg-16-mod": (COLOUR, 10, 14_728_266 - 2 * 512),
    "bn-vgg-16": (COLOUR, 10, 14_728_266 + 2 * 10),
    "light-vgg": (COLOUR, 10, 2_462_282),
    "bn-light-vgg": (COLOUR, 10, 2_462_282 + 2 * (2 * 64 + 2 * 128 + 4 * 256 + 512)),
    "bilstm-dl": ((20, 100), 4, 34_564),
    "ln-bilstm-dl": ((20, 100), 4, 34_564 + 2 * 2 * (128 + 128 + 32)),
}


@pytest.mark.parametrize(("name", "shape", "classes", "numbers"), [(name, *rest) for name, rest in PUBLISHED.items()])
def test_networks_have_the_published_number_of_parameters(
    name: str, shape: tuple[int, ...], classes: int, numbers: int
) -> None:
    with torch.device("meta"):
        model = models.build(name, shape, classes)
    assert sum(p.numel() for p in model.parameters()) == numbers


def kinds(model: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in model.modules() if not list(layer.children())]


@pytest.mark.parametrize("name", [name for name in models.names() if name.startswith("bn-")])
def test_networks_with_batch_norm_have_it_directly_after_each_layer(name: str) -> None:
    found = kinds(models.build(name, COLOUR, 10))
    behind = [after for layer, after in pairwise([*found, ""]) if layer in ("Conv2d", "Linear")]
    free = name == "bn-light-vgg"  # its scores
    assert ["BatchNorm" in after for after in behind] == [True] * (len(behind) - free) + [False] * free
    assert sum("BatchNorm" in kind for kind in found) == len(behind) - free


@pytest.mark.parametrize(
    ("name", "norm"), [("resnet-18", "features.blocks.7.body.conv2_norm"), ("vgg-16", "features.conv5_3_norm")]
)
def test_mod_lacks_the_last_norm_and_nothing_else(name: str, norm: str) -> None:
    whole, mod = (models.build(n, COLOUR, 10).state_dict() for n in (name, f"{name}-mod"))
    assert {key.rpartition(".")[0] for key in whole.keys() - mod.keys()} == {norm}
    assert mod.keys() <= whole.keys()


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("bilstm-dl", (3, 32, 32), r"needs texts as word vectors \(tokens, dimensions\), got .* \(3, 32, 32\)"),
        ("lenet-5", (1, 28, 11), "12 x 12 pixels or more"),
        ("vgg-16", (3, 28, 32), "32 x 32 pixels or more"),
        ("light-vgg", (3, 7, 8), "8 x 8 pixels or more"),
        ("cifar-tutorial", (3, 32, 23), "24 x 24 pixels or more, got examples of shape .3, 32, 23."),
    ],
)
def test_errors_name_the_examples_that_a_network_needs(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 2)


SMALL = {
    "lenet-5": (networks.lenet_5, (1, 12, 13)),
    "ln-light-vgg": (partial(networks.light_vgg, width=2, norm=models.layer_norm), (3, 8, 8)),
    "ln-tf-tutorial": (partial(networks.tf_tutorial, norm=models.layer_norm), (1, 24, 24)),
    "vgg-16": (partial(networks.vgg, width=2, norm=models.layer_norm), (3, 32, 32)),
    "bilstm-dl": (partial(networks.bilstm_dl, dropout=0.0), TEXT),
    "ln-bilstm-dl": (partial(networks.ln_bilstm_dl, dropout=0.0), TEXT),
}


@pytest.mark.parametrize("name", SMALL)
def test_clipped_sums_of_the_networks_are_exact(name: str) -> None:
    network, shape = SMALL[name]
    case = Case(name, partial(network, shape, 4), labelled(*shape), cross_entropy)
    check(case, BookKeeping(), b=3, dtype=torch.float64)


def test_the_cifar_network_uses_only_the_centre_of_the_image_and_ignores_brightness_and_contrast() -> None:
    model, image = models.build("cifar-tutorial", (3, 32, 33), 10), torch.rand(1, 3, 32, 33)
    padded = image.clone()
    padded[..., :4, :] = padded[..., 28:, :] = padded[..., :4] = padded[..., 28:] = 7.0
    torch.testing.assert_close(model(padded), model(image))
    torch.testing.assert_close(model(0.3 * image + 0.5), model(image), rtol=1e-3, atol=1e-3)
    middle = model.features[:2](image)
    assert middle.shape == (1, 3, 24, 24)
    torch.testing.assert_close(middle.mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(middle.var(correction=0), torch.tensor(1.0), rtol=1e-3, atol=0)


def test_initial_weights_are_normal_and_truncated_at_two_standard_deviations() -> None:
    cifar, mnist = models.build("cifar-tutorial", (3, 32, 32), 10), models.build("mlp1000", (60,), 10)
    expected: list[tuple[Tensor, float]] = [
        (cifar.features.conv1.weight, 0.05),
        (cifar.features.conv2.weight, 0.05),
        (cifar.head.fc1.weight, 0.04),
        (cifar.head.fc2.weight, 0.04),
        (cifar.head.scores.weight, 1 / 384),
        (mnist[1].weight, 60**-0.5),
        (mnist[3].weight, 1000**-0.5),
    ]
    for weight, std in [(weight.detach(), std) for weight, std in expected]:
        assert float(weight.abs().max()) <= 2 * std
        assert float(weight.std()) == pytest.approx(0.87962 * std, rel=0.06)  # of a normal number cut there
    biases = {name: float(value.detach().unique()) for name, value in cifar.named_parameters() if "bias" in name}
    assert list(biases.values()) == pytest.approx([0, 0.1, 0.1, 0.1, 0])


def test_pooling_windows_of_the_tutorial_overlap_and_extend_beyond_the_lower_and_right_edge() -> None:
    features, x = models.build("tf-tutorial", (3, 32, 32), 10).features, torch.randn(2, 3, 24, 24)
    edged = torch.full((2, 3, 25, 25), -torch.inf)
    edged[..., :24, :24] = x
    windows = edged.unfold(2, 3, 2).unfold(3, 3, 2)
    assert windows.shape[2:4] == (12, 12)
    assert torch.equal(features.pool1(x), windows.amax((-1, -2)))
    assert features.pool2(x[..., :12, :12]).shape == (2, 3, 6, 6)


def test_responses_of_the_tutorial_are_divided_by_those_of_nine_channels() -> None:
    responses, x = models.build("tf-tutorial", (3, 32, 32), 10).features.responses1, 30 * torch.randn(2, 12, 4, 4)
    expected = torch.empty_like(x)
    for c in range(12):
        near = x[:, max(c - 4, 0) : c + 5].square().sum(1)
        expected[:, c] = x[:, c] / (1 + 0.001 / 9 * near) ** 0.75
    torch.testing.assert_close(responses(x), expected)


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
    lstm, x = randomised(LayerNormLSTM(6, 7)), torch.randn(3, *TEXT)
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
