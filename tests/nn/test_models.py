"""The built-in models, those of texts, the user's own, and public weights."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from engine_check import check
from model_cases import Case, cross_entropy, labelled
from noisette.clipping.engines import BookKeeping
from noisette.data.words import number_of
from noisette.errors import PrivacyError
from noisette.nn import models
from noisette.run.per_example import PerExampleClip
from noisette.run.private import check_no_batch_norm
from papers import networks as networks  # which registers cifar-tutorial

IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)
# Shape of an example, classes, and the number of parameters, as published where the network is.
NETWORKS = {
    "linear": ((113,), 10, 113 * 10 + 10),
    "mlp": ((113,), 10, 113 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
    "table": ((113,), 10, 113 * 64 + 64 + 64 * 10 + 10),
    "cnn": (IMAGE, 10, 26_010),
    "scattering": (IMAGE, 10, 81 * 7 * 7 * 10 + 10),
    "patches-and-scattering": (COLOUR, 10, (2 * 2 * 400 * 4 + 3 * 81 * 4 * 4) * 10 + 10),
    "resnet-18": (COLOUR, 10, 11_173_962),
    "lipschitz-linear": (IMAGE, 10, 784 * 10),
    "lipschitz-dense": (IMAGE, 10, 784 * 128 + 128 * 10),
    "scattering-lipschitz-linear": (IMAGE, 10, 17 * 7 * 7 * 10),
}


def test_the_table_above_has_every_model() -> None:
    own = {name for name, model in models.REGISTRY.items() if isinstance(model.factory, str) and not model.of_words}
    assert own == set(NETWORKS)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "numbers"),
    [pytest.param(name, *rest, marks=pytest.mark.slow if "patches" in name else []) for name, rest in NETWORKS.items()],
)
def test_networks_have_the_published_number_of_parameters_and_one_row_of_scores_for_each_example(
    name: str, shape: tuple[int, ...], classes: int, numbers: int
) -> None:
    # Weights that are projected, and a dictionary of patches, must have values.
    with torch.device("cpu" if "lipschitz" in name or "patches" in name else "meta"):
        model = models.build(name, shape, classes)
        assert model(torch.rand(3, *shape)).shape == (3, classes)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == numbers


def test_the_trial_call_of_build_does_not_change_the_model() -> None:
    model = models.build("resnet-18", COLOUR, 10)
    assert {type(m).__name__ for m in model.modules() if not m.training} == set()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)):
        assert int(norm.num_batches_tracked) == 0
        assert not norm.running_mean.any()
    fixed = models.build("scattering", IMAGE, 10)
    assert not fixed.features.training
    assert list(fixed.state_dict()) == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "there are linear, mlp, table, cnn, scattering, patches-and-scattering, "),
        ("missing_package:net", "missing_package"),
        ("own:absent", "absent"),
        ("own:takes_one", "called with"),
        ("own:not_a_module", "not a torch.nn.Module"),
        ("own:wrong_classes", "does not fit the labels"),
        ("own:wrong_shape", "cannot take examples of shape"),
        ("own:of_a_dictionary", "return a model that takes this tensor alone"),
    ],
)
def test_models_that_do_not_fit_are_refused(tmp_path, monkeypatch, name, message) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "class OfADictionary(nn.Linear):\n"
        "    def forward(self, batch): return super().forward(batch.get('x'))\n"
        "def of_a_dictionary(shape, classes): return OfADictionary(4, 2)\n"
        "def takes_one(shape): return nn.Linear(4, 2)\n"
        "def not_a_module(shape, classes): return 3\n"
        "def wrong_classes(shape, classes): return nn.Linear(4, 3)\n"
        "def wrong_shape(shape, classes): return nn.Linear(5, 2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own", raising=False)
    with pytest.raises(ValueError, match=message):
        models.build(name, (4,), 2)


@pytest.mark.parametrize(
    ("name", "shape", "words", "message"),
    [
        ("cnn", (12,), 0, "needs images"),
        ("scattering-lipschitz-linear", (1, 8, 8), 0, "12 x 12 pixels or more"),
        ("resnet-18", (12,), 0, "needs images"),
        ("mlp", (6,), 10, "'mlp' takes no texts whose words are numbers; there are transformer, word-c"),
        ("transformer", (6,), 0, "there are none in these data"),
        ("transformer", (6, 4), 10, "needs texts as numbers of words"),
    ],
)
def test_errors_name_the_examples_that_a_network_needs(name, shape, words, message) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 2, words)


def test_fixed_features_stay_in_evaluation_mode() -> None:
    """Batch norm in training mode would make the features of one example depend on the others."""
    model = models.FixedFeatures(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()), nn.Dropout())
    x = torch.rand(5, 3)
    for _ in range(2):
        torch.testing.assert_close(model.features(x)[:1], model.features(x[:1]))
        assert model.head.training
        assert model.train() is model
    assert not model.eval().head.training


def kinds(model: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in model.modules() if not list(layer.children())]


def test_resnet_has_the_stages_of_the_paper() -> None:
    model = models.build("resnet-18", COLOUR, 10)
    x, sizes = torch.rand(2, *COLOUR), []
    x = model.features[:3](x)
    for block in model.features.blocks:
        x = block(x)
        sizes.append(tuple(x.shape[1:]))
    assert sizes == [(64, 32, 32)] * 2 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2 + [(512, 4, 4)] * 2
    assert all(layer.bias is None for layer in model.modules() if isinstance(layer, nn.Conv2d))
    around = [kinds(block.shortcut) for block in model.features.blocks]
    assert around == [["Identity"]] * 2 + [["Conv2d", "BatchNorm2d"], ["Identity"]] * 3
    assert kinds(model.features.blocks[0].body) == ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d"]
    assert kinds(model)[:3] == ["Conv2d", "BatchNorm2d", "ReLU"]


def test_batch_norm_is_refused_until_it_is_replaced() -> None:
    model = models.build("resnet-18", COLOUR, 10)
    with pytest.raises(PrivacyError) as refusal:
        check_no_batch_norm(model)
    for path, module in model.named_modules():
        assert (path in str(refusal.value)) >= isinstance(module, nn.BatchNorm2d)


def test_clipped_sums_are_exact() -> None:
    network = partial(models.resnet, width=2, norm=models.layer_norm)
    case = Case("", partial(network, (3, 8, 8), 4), labelled(3, 8, 8), cross_entropy)
    check(case, BookKeeping(), b=3, dtype=torch.float64)


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
    weights = models.word_counts((6,), 2, words=100_000, ranked=True).features.get_buffer("weights")
    the, of, terrible = (weights[number_of(word, 100_000)].item() for word in ("the", "of", "terrible"))
    assert (the, of, terrible) == pytest.approx((1, 4**0.3, 1001**0.3))
    assert models.word_counts((6,), 2, words=50).features.get_buffer("weights").unique().tolist() == [1]


def test_an_empty_text_has_finite_scores_and_gradients(model: nn.Module) -> None:
    scores = model(TEXTS)
    assert scores.isfinite().all()
    scores.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_each_text_is_seen_alone(model: nn.Module) -> None:
    PerExampleClip(model, 1.0).accumulate(lambda model, text: model(text).sum(), TEXTS)
    model.eval()
    assert torch.allclose(model(TEXTS)[1], model(TEXTS[1:2])[0], atol=1e-6)


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


def saved(model: nn.Module, path: Path, *, without: tuple[str, ...] = ("head.scores",)) -> Path:
    save_file({name: v for name, v in model.state_dict().items() if not name.startswith(without)}, path)
    return path


def frozen_names(model: nn.Module) -> set[str]:
    return {name.rpartition(".")[0] for name, p in model.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        (("features", "head.fc1"), {"features.conv1", "features.conv2", "head.fc1"}),
        (("features.conv1",), {"features.conv1"}),
        ((), set()),
    ],
)
def test_weights_of_a_file_are_loaded_and_the_parts_named_are_frozen(tmp_path, frozen, expected) -> None:
    public, own = models.build("cifar-tutorial", (3, 32, 32), 100), models.build("cifar-tutorial", (3, 32, 32), 10)
    scores = own.head.scores.weight.clone()
    model = models.pretrained(own, saved(public, tmp_path / "public.safetensors"), frozen=frozen)
    assert frozen_names(model) == expected
    assert isinstance(model, models.FixedFeatures) == ("features" in frozen)
    for name, value in load_file(tmp_path / "public.safetensors").items():
        torch.testing.assert_close(model.state_dict()[name], value)
    torch.testing.assert_close(model.head.scores.weight, scores)
    assert model.state_dict().keys() == public.state_dict().keys()


def test_batch_norm_of_frozen_features_keeps_the_statistics_of_the_file(tmp_path: Path) -> None:
    public = models.build("bn-cifar-tutorial", (3, 32, 32), 100)
    public(torch.rand(9, 3, 32, 32))
    path = saved(public, tmp_path / "public.safetensors")
    model = models.pretrained(models.build("bn-cifar-tutorial", (3, 32, 32), 10), path)
    assert isinstance(model, models.FixedFeatures)
    for _ in range(2):
        model.train()(torch.rand(5, 3, 32, 32))
        for name, value in public.features.state_dict().items():
            assert torch.equal(model.features.state_dict()[name], value)
    assert public.features.conv1_norm.running_mean.any()


def test_everything_that_does_not_fit_is_listed_at_once_and_nothing_is_loaded(tmp_path: Path) -> None:
    model = models.build("cifar-tutorial", (3, 32, 32), 10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    weights = dict(before)
    del weights["features.conv1.bias"], weights["head.fc1.bias"]
    weights["head.fc2.weight"] = torch.full((384, 384), torch.nan)
    weights["head.scores.weight"] = torch.zeros(100, 384)
    weights["head.fc3.weight"] = torch.zeros(3)
    save_file(weights, tmp_path / "other.safetensors")
    with pytest.raises(ValueError) as refusal:
        models.pretrained(model, tmp_path / "other.safetensors", frozen=("features", "hed", "head.relu1"))
    first, *problems = str(refusal.value).splitlines()
    assert "7 problems" in first
    assert {problem.strip() for problem in problems} == {
        "features.conv1.bias: frozen, but missing in the file",
        "head.fc1.bias: missing, though the file holds other tensors of that layer",
        "head.fc2.weight: holds values that are not finite as torch.float32",
        "head.scores.weight: of shape (100, 384) in the file and (10, 384) in the model; leave it out of the file to "
        "train it from initial weights",
        "head.fc3.weight: the model has no such tensor",
        "hed: cannot be frozen, since no part of the model with weights has this name",
        "head.relu1: cannot be frozen, since no part of the model with weights has this name",
    }
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not frozen_names(model)


def test_files_that_are_not_tensors_are_refused(tmp_path: Path) -> None:
    model = models.build("linear", (4,), 2)
    with pytest.raises(FileNotFoundError, match=f"no file {tmp_path}.* make it first"):
        models.pretrained(model, tmp_path / "absent.safetensors")
    torch.save(model.state_dict(), tmp_path / "pickle.safetensors")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        models.pretrained(model, tmp_path / "pickle.safetensors")
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(ValueError, match="the file holds no tensors"):
        models.pretrained(model, tmp_path / "empty.safetensors", frozen=())
    with pytest.raises(ValueError, match=f"{tmp_path} is not a safetensors file"):
        models.pretrained(model, tmp_path)


def test_tensors_of_other_types_are_judged_as_the_model_would_hold_them(tmp_path: Path) -> None:
    def refusal(weight: torch.Tensor, frozen: tuple[str, ...] = ()) -> str:
        save_file({"1.weight": weight, "1.bias": torch.zeros(2)}, tmp_path / "weights.safetensors")
        with pytest.raises(ValueError) as caught:
            models.pretrained(models.build("linear", (4,), 2), tmp_path / "weights.safetensors", frozen=frozen)
        return str(caught.value)

    assert "not finite as torch.float32" in refusal(torch.full((2, 4), 1e300, dtype=torch.float64))
    assert "complex numbers" in refusal(torch.zeros(2, 4, dtype=torch.complex64))
    assert "leave it out" in refusal(torch.zeros(2, 5))
    assert "leave it out" not in refusal(torch.zeros(2, 5), frozen=("1",)), "a frozen tensor must be in the file"
    save_file({"1.weight": torch.ones(2, 4).to(torch.float8_e4m3fn)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match=r"1\.bias: missing"):
        models.pretrained(models.build("linear", (4,), 2), tmp_path / "weights.safetensors", frozen=())
