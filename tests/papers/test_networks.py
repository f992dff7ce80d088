"""The networks of the papers, their layers, sizes, first weights and clipped sums; GloVe's vectors, also damaged."""

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from engine_check import check
from model_cases import Case, cross_entropy, labelled
from noisette.clipping.engines import BookKeeping
from noisette.data import DataError
from noisette.nn import models
from papers.glove import MOST_FREQUENT, PADDING, UNKNOWN, WHOLE, Vocabulary, glove, read_vectors, read_vectors_npz
from papers.networks import LayerNormLSTM, bilstm_dl, lenet_5, light_vgg, ln_bilstm_dl, tf_tutorial, vgg

IMAGE, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (5, 6)
# Shape of an example, classes, and the number of parameters as published.
PUBLISHED = {
    "mlp1000": ((60,), 10, 70_000),
    "lenet-300-100": (IMAGE, 10, 266_610),
    "lenet-5": (IMAGE, 10, 61_706),
    "ln-lenet-5": (IMAGE, 10, 61_706 + 2 * (6 + 16 + 120 + 84 + 10)),
    "cifar-tutorial": (COLOUR, 10, 1_144_138),
    "tf-tutorial": (COLOUR, 10, 1_068_298),
    "resnet-18-mod": (COLOUR, 10, 11_173_962 - 2 * 512),
    "bn-resnet-18": (COLOUR, 10, 11_173_962 + 2 * 10),
    "vgg-16-mod": (COLOUR, 10, 14_728_266 - 2 * 512),
    "bn-vgg-16": (COLOUR, 10, 14_728_266 + 2 * 10),
    "bn-light-vgg": (COLOUR, 10, 2_462_282 + 2 * (2 * 64 + 2 * 128 + 4 * 256 + 512)),
    "bilstm-dl": ((20, 100), 4, 34_564),
    "ln-bilstm-dl": ((20, 100), 4, 34_564 + 2 * 2 * (128 + 128 + 32)),
}


@pytest.mark.parametrize(("name", "shape", "classes", "numbers"), [(name, *rest) for name, rest in PUBLISHED.items()])
def test_networks_have_the_published_number_of_parameters(name, shape, classes, numbers):
    with torch.device("meta"):
        model = models.build(name, shape, classes)
    assert sum(p.numel() for p in model.parameters()) == numbers


SMALL = {
    "lenet-5": (lenet_5, (1, 12, 13)),
    "ln-light-vgg": (partial(light_vgg, width=2, norm=models.layer_norm), (3, 8, 8)),
    "ln-tf-tutorial": (partial(tf_tutorial, norm=models.layer_norm), (1, 24, 24)),
    "vgg-16": (partial(vgg, width=2, norm=models.layer_norm), (3, 32, 32)),
    "bilstm-dl": (partial(bilstm_dl, dropout=0.0), TEXT),
    "ln-bilstm-dl": (partial(ln_bilstm_dl, dropout=0.0), TEXT),
}


@pytest.mark.parametrize("name", SMALL)
def test_clipped_sums_of_the_networks_are_exact(name):
    network, shape = SMALL[name]
    case = Case(name, partial(network, shape, 4), labelled(*shape), cross_entropy)
    check(case, BookKeeping(), b=3, dtype=torch.float64)


def test_the_cifar_network_uses_only_the_centre_of_the_image_and_ignores_brightness_and_contrast():
    model, image = models.build("cifar-tutorial", (3, 32, 33), 10), torch.rand(1, 3, 32, 33)
    padded = image.clone()
    padded[..., :4, :] = padded[..., 28:, :] = padded[..., :4] = padded[..., 28:] = 7.0
    torch.testing.assert_close(model(padded), model(image))
    torch.testing.assert_close(model(0.3 * image + 0.5), model(image), rtol=1e-3, atol=1e-3)
    middle = model.features[:2](image)
    assert middle.shape == (1, 3, 24, 24)
    torch.testing.assert_close(middle.mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(middle.var(correction=0), torch.tensor(1.0), rtol=1e-3, atol=0)


def test_initial_weights_are_normal_and_truncated_at_two_standard_deviations():
    cifar, mnist = models.build("cifar-tutorial", (3, 32, 32), 10), models.build("mlp1000", (60,), 10)
    of_head = (cifar.head.fc1, 0.04), (cifar.head.fc2, 0.04), (cifar.head.scores, 1 / 384)
    of_others = (cifar.features.conv1, 0.05), (cifar.features.conv2, 0.05), (mnist[1], 60**-0.5), (mnist[3], 1000**-0.5)
    for layer, std in (*of_head, *of_others):
        weight = layer.weight.detach()
        assert float(weight.abs().max()) <= 2 * std
        assert float(weight.std()) == pytest.approx(0.87962 * std, rel=0.06)  # of a normal number cut there
    biases = {name: float(value.detach().unique()) for name, value in cifar.named_parameters() if "bias" in name}
    assert list(biases.values()) == pytest.approx([0, 0.1, 0.1, 0.1, 0])


def test_pooling_windows_of_the_tutorial_overlap_and_extend_beyond_the_lower_and_right_edge():
    features, x = models.build("tf-tutorial", (3, 32, 32), 10).features, torch.randn(2, 3, 24, 24)
    edged = torch.full((2, 3, 25, 25), -torch.inf)
    edged[..., :24, :24] = x
    windows = edged.unfold(2, 3, 2).unfold(3, 3, 2)
    assert windows.shape[2:4] == (12, 12)
    assert torch.equal(features.pool1(x), windows.amax((-1, -2)))
    assert features.pool2(x[..., :12, :12]).shape == (2, 3, 6, 6)


def test_responses_of_the_tutorial_are_divided_by_those_of_nine_channels():
    responses, x = models.build("tf-tutorial", (3, 32, 32), 10).features.responses1, 30 * torch.randn(2, 12, 4, 4)
    expected = torch.empty_like(x)
    for c in range(12):
        expected[:, c] = x[:, c] / (1 + 0.001 / 9 * x[:, max(c - 4, 0) : c + 5].square().sum(1)) ** 0.75
    torch.testing.assert_close(responses(x), expected)


def normal(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    centred = x - x.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt() * scale + shift


def randomised(model: nn.Module) -> nn.Module:
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.eval()


def test_layer_norms_apply_to_both_parts_of_the_gates_and_to_the_cell():
    lstm, x = randomised(LayerNormLSTM(6, 7)), torch.randn(3, *TEXT)
    h = c = torch.zeros(3, 7)
    for t in range(5):
        from_input = normal(lstm.from_input(x[:, t]), lstm.input_norm.weight, lstm.input_norm.bias)
        from_hidden = normal(lstm.from_hidden(h), lstm.hidden_norm.weight, lstm.hidden_norm.bias)
        i, f, g, o = (from_input + from_hidden).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(normal(c, lstm.cell_norm.weight, lstm.cell_norm.bias))
    torch.testing.assert_close(lstm(x), h)


LINES = ["the 0.5 -1.25 3e-2", "'s 1 2 3", "caf\u00e9 4 5 6", "\u0085 7 8 9"]  # U+0085 ends a line for some readers


def text(folder: Path, *lines: str, end: bytes = b"") -> Path:
    path = folder / "vectors.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() + end)
    return path


def refusal(path: Path, *, words: int = 4) -> str:
    with pytest.raises(DataError) as caught:
        read_vectors(path, words=words, dims=3)
    return str(caught.value)


def test_words_and_vectors_as_they_are_written(tmp_path):
    found = read_vectors(text(tmp_path, *LINES), words=4, dims=3)
    assert list(found.known) == ["the", "'s", "caf\u00e9", "\u0085"]
    expected = np.array([[0.5, -1.25, 0.03], [1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    np.testing.assert_array_equal(found.vectors, expected, strict=True)
    assert found.note == ""


def test_damaged_vectors_are_refused(tmp_path):
    assert "line 4 is no word with 3 numbers" in refusal(text(tmp_path, *LINES[:3], end=b"\x41 7 8"))
    assert "there are 3 words instead of 4" in refusal(text(tmp_path, *LINES[:3]))
    assert "1 words appear twice" in refusal(text(tmp_path, *LINES, LINES[0]))
    for number in ("nan", "-inf", "1e39"):
        assert "the vector of word 2 is not finite" in refusal(text(tmp_path, LINES[0], f"of 1 {number} 3"), words=2)
    garbled = text(tmp_path, LINES[0], "of x 2 3", "to 1 2 3", "and  2 3", "in 1 2", end=b"\xff 1 2 3\n\n")
    message = refusal(garbled, words=2)
    assert re.findall(r"line (\d) is no word", message) == ["2", "4", "5", "6", "7"]
    assert "download it again" in message


def test_arrays_that_are_not_words_and_vectors_are_refused(tmp_path):
    path = tmp_path / MOST_FREQUENT
    for arrays in (
        {"words": np.array(["the"])},
        {"words": np.array(["the", "of"]), "vectors": np.ones((3, 2), np.float32)},
        {"words": np.array(["the"]), "vectors": np.ones((1, 2), np.int64)},
        {"words": np.array(["the"]), "vectors": np.full((1, 2), np.nan, np.float32)},
        {"words": np.array([], dtype="U3"), "vectors": np.ones((0, 2), np.float32)},
    ):
        np.savez(path, **arrays)
        with pytest.raises(DataError, match="download it again"):
            read_vectors_npz(path)
    path.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match="is damaged"):
        read_vectors_npz(path)


KNOWN = ("the", "oil", "price", "'s", ".")
VOCABULARY = Vocabulary(known=KNOWN, vectors=np.arange(10, dtype=np.float32).reshape(5, 2), note="", tokens=4)


def test_long_texts_are_truncated_and_short_ones_padded_at_the_end():
    texts = ["The oil price", "the oil . the oil", "", "the zyzzyva"]
    numbers = VOCABULARY.number(texts)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [[2, 3, 4, PADDING], [2, 3, 6, 2], [PADDING] * 4, [2, UNKNOWN, PADDING, PADDING]]
    for row, text in zip(numbers, texts, strict=True):
        assert np.array_equal(VOCABULARY.number([text])[0], row), "by no other text"


def test_padding_is_zero_unknown_is_the_mean_and_words_keep_their_vectors():
    vectors = VOCABULARY.numbered_vectors
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[0, 0], [4, 5], [0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_errors_say_where_to_put_absent_vectors(tmp_path, monkeypatch):
    monkeypatch.delenv("NOISETTE_DATA", raising=False)
    wanted = f"put {WHOLE} from https://nlp.stanford.edu/data/glove.6B.zip into {tmp_path / 'glove'}"
    with pytest.raises(DataError, match=re.escape(wanted)):
        glove(tmp_path)
