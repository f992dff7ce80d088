from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from noisette.data.words import number_of
from noisette.nn import models
from noisette.run.per_example import PerExampleClip

TEXTS = torch.tensor([[5, 3, 9, 0, 0, 0], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return models.build("transformer", (6,), 3, 10)


def test_padding_is_not_read(model: nn.Module) -> None:
    with torch.no_grad():
        before = model(TEXTS[:1])
        model.word.weight[0] += torch.randn(64)
        assert torch.allclose(model(TEXTS[:1]), before, atol=1e-5)
        model.word.weight[9] += torch.randn(64)
        assert not torch.allclose(model(TEXTS[:1]), before, atol=1e-2)


@pytest.mark.parametrize("name", ["word-counts", "ranked-word-counts"])
def test_counts_of_words_are_fixed_and_a_linear_layer_is_trained(name: str) -> None:
    made = models.build(name, (6,), 3, 10)
    assert isinstance(made, models.FixedFeatures)
    assert [p.shape for p in made.parameters()] == [(3, 10)]
    torch.testing.assert_close(made(TEXTS[:1]), made(TEXTS[:1].roll(2, 1)))
    assert not made(TEXTS[2:]).any()


def test_common_words_weigh_less_by_their_rank() -> None:
    made = models.word_counts((6,), 2, words=100_000, ranked=True)
    weights = made.features.get_buffer("weights")
    the, of, terrible = (weights[number_of(word, 100_000)].item() for word in ("the", "of", "terrible"))
    assert (the, of, terrible) == pytest.approx((1, 4**0.3, 1001**0.3))
    assert models.word_counts((6,), 2, words=50).features.get_buffer("weights").unique().tolist() == [1]


def test_an_empty_text_has_finite_scores_and_gradients(model: nn.Module) -> None:
    scores = model(TEXTS)
    assert scores.isfinite().all()
    scores.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_each_text_is_seen_alone(model: nn.Module) -> None:
    bound = PerExampleClip(model, 1.0)
    bound.accumulate(lambda model, text: model(text).sum(), TEXTS)
    bound.close()
    model.eval()
    assert torch.allclose(model(TEXTS)[1], model(TEXTS[1:2])[0], atol=1e-6)


def test_models_and_data_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="'mlp' takes no texts whose words are numbers; there are transformer, word-c"):
        models.build("mlp", (6,), 3, 10)
    with pytest.raises(ValueError, match="there are none in these data"):
        models.build("transformer", (6,), 3)
    with pytest.raises(ValueError, match="needs texts as numbers of words"):
        models.build("transformer", (6, 4), 3, 10)


def test_a_folder_of_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]))
    transformers.BertTokenizerFast(vocab_file=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    original = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=7, **shape)).eval()
    original.save_pretrained(tmp_path)
    loaded = models.build(str(tmp_path), (4,), 2, 7).eval()
    numbers = torch.tensor([[2, 5, 3, 0]])
    expected = original(input_ids=numbers, attention_mask=torch.tensor([[1, 1, 1, 0]])).logits
    assert torch.allclose(loaded(numbers), expected, atol=1e-6)
    assert models.build(str(tmp_path), (4,), 5, 7)(numbers).shape == (1, 5)
    with pytest.raises(ValueError, match="is a model for texts"):
        models.build(str(tmp_path), (4,), 2)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no model for texts that can be loaded"):
        models.build(str(tmp_path), (4,), 2, 7)


def test_counts_and_vectors_of_a_text_are_a_quarter_vectors_and_come_from_a_file(tmp_path: Path) -> None:
    made = models.build("word-counts-and-vectors", (6,), 3, 10)
    assert isinstance(made, models.FixedFeatures)
    given = {f"features.{name}": value for name, value in made.features.state_dict().items()}
    given["features.vectors.vectors"] = torch.zeros(10, 50)
    given["features.vectors.vectors"][9, 7] = 2.0
    save_file(given, tmp_path / "vectors.safetensors")
    made = models.pretrained(made, tmp_path / "vectors.safetensors")
    assert isinstance(made, models.FixedFeatures)
    features = made.features(TEXTS)
    torch.testing.assert_close(features[0].norm(), torch.tensor(1.0))
    assert features[0, 10:].nonzero().tolist() == [[7]]
    assert features[0, 17].item() == pytest.approx(0.5)
    assert not features[1, 10:].any()
    assert [p.shape for p in made.parameters() if p.requires_grad] == [(3, 60)]


def test_the_encoder_is_torchs_layer_on_sinusoids_and_does_not_see_padding() -> None:
    model = models.build("encoder", (5, 6), 3).double().eval()
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    x[1, 3:], x[2] = 0.0, 0.0
    places = torch.stack([torch.arange(5.0) / 10_000 ** (2 * (number // 2) / 6) for number in range(6)], 1)
    places[:, 0::2], places[:, 1::2] = places[:, 0::2].sin(), places[:, 1::2].cos()
    for text, used in zip(x, (5, 3), strict=False):
        encoded = model.block((text[:used] + places[:used])[None]).mean(1)
        torch.testing.assert_close(model(text[None]), model.scores(encoded), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model(x)[2], model.scores.bias)
