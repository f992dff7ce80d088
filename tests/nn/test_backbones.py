"""Public networks as fixed features: which examples they get, who can read what is kept, what the statement says."""

import json
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from noisette.cli import app
from noisette.nn.models.backbones import PACKAGES, folder_of
from noisette.nn.models.factory import ImageFeatures, _responses, fixed_features
from noisette.training.build import cached_features, features_of
from noisette.training.saved_model import SavedModel

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
SHAPE = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network") / "tiny-vit"
    torch.manual_seed(0)
    transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **SHAPE)).save_pretrained(folder)
    facts = {"size": {"height": 8, "width": 8}, "image_mean": [0.4] * 3, "image_std": [0.2] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(facts))
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network") / "tiny-bert"
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"]))
    transformers.BertTokenizerFast(vocab_file=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(vocab_size=7, **SHAPE)).save_pretrained(folder)
    return folder


def test_images_are_brought_to_the_size_and_range_of_the_network(images: Path) -> None:
    features = fixed_features(str(images), (1, 4, 4), words=False)
    assert isinstance(features, ImageFeatures)
    features.in_bfloat16 = False
    grey = torch.rand(3, 1, 4, 4)
    network = transformers.AutoModel.from_pretrained(images).eval()
    coloured = grey.expand(-1, 3, -1, -1)
    large = nn.functional.interpolate(coloured, (8, 8), mode="bicubic", antialias=True).clamp(0, 1)
    expected = network(pixel_values=(large - 0.4) / 0.2).pooler_output
    assert torch.allclose(features(grey), expected, atol=1e-5)
    assert torch.allclose(features(grey)[1:2], features(grey[1:2]), atol=1e-5)
    features.in_bfloat16 = True
    torch.testing.assert_close(features(grey), expected, atol=0.1, rtol=0.0)
    assert not any(p.requires_grad for p in features.parameters())


class Blocks(nn.Module):
    """The parts of EfficientNet's network that are read."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)])

    def extract_features(self, images: Tensor) -> Tensor:
        for block in self._blocks:
            images = block(images)
        return images.square()


def test_every_block_of_efficientnet_gives_means_and_deviations() -> None:
    network, images = Blocks(), torch.rand(2, 3, 8, 8)
    outputs = [first := network._blocks[0](images), second := network._blocks[1](first), second.square()]
    found = _responses(network, images)
    expected = [
        f(output.flatten(2)) for output in outputs for f in (lambda o: o.std(2, correction=0), lambda o: o.mean(2))
    ]
    torch.testing.assert_close(found, torch.cat(expected, 1))
    assert torch.equal(_responses(network, images), found)  # no hook is left


def test_mirrored_features_are_those_of_an_image_and_of_its_mirror_image(images: Path) -> None:
    plain, mirrored = (fixed_features(str(images), (3, 8, 8), words=False, mirrored=each) for each in (False, True))
    assert isinstance(plain, ImageFeatures)
    assert isinstance(mirrored, ImageFeatures)
    plain.in_bfloat16 = mirrored.in_bfloat16 = False
    x = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(mirrored(x), (plain(x) + plain(x.flip(-1))) / 2)
    assert str(plain) != str(mirrored), "features that are kept are known by the printed form"


def test_texts_become_the_mean_of_their_tokens_of_norm_one(texts: Path) -> None:
    features = fixed_features(str(texts), (4,), words=True)
    network = transformers.AutoModel.from_pretrained(texts).eval()
    expected = network(input_ids=torch.tensor([[2, 5, 3]])).last_hidden_state.mean(1)
    found = features(torch.tensor([[2, 5, 3, 0], [0, 0, 0, 0]]))
    assert torch.allclose(found[0], nn.functional.normalize(expected, dim=1)[0], atol=1e-5)
    assert found.isfinite().all()


def test_what_is_absent_is_said(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no backbone 'resnet'; give efficientnet-lite0, minilm-l6, or a folder"):
        folder_of("resnet")
    monkeypatch.setattr("noisette.nn.models.backbones.import_module", Mock(side_effect=ImportError))
    for name, package in PACKAGES.items():
        with pytest.raises(ValueError, match=f"pip install {package.install}"):
            folder_of(name)
    missing, unfit = r"has no preprocessor_config\.json", "holds no network that can be loaded"
    for file, message in (("config.json", missing), ("preprocessor_config.json", unfit)):
        (tmp_path / file).write_text("{}")
        with pytest.raises(ValueError, match=message):
            fixed_features(str(tmp_path), (3, 8, 8), words=False)


def test_features_are_computed_once_and_kept_for_the_owner_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path)
    network, inputs, calls = nn.Linear(3, 2), torch.rand(5, 3), list[int]()

    def compute() -> Tensor:
        calls.append(1)
        return network(inputs).detach()

    folder = tmp_path / "features"
    first = cached_features(network, inputs, compute)
    assert torch.equal(cached_features(network, inputs, compute), first)
    assert len(calls) == 1
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    cached_features(network, inputs + 1, compute)
    network.weight.data += 1
    assert torch.equal(cached_features(network, inputs, compute), network(inputs))
    for side in (4, 8):
        cached_features(ImageFeatures(nn.Identity(), side=side, mean=(0.5,), deviation=(0.5,)), inputs, compute)
    assert len(calls) == 5
    part = ImageFeatures(nn.Flatten(), side=4, mean=(0.5,), deviation=(0.5,))
    features_of(torch.rand(2, 3, 4, 4), nn.Sequential(part, nn.Flatten()), torch.device("cpu"))  # of public examples
    assert len(list(folder.glob("*.safetensors"))) == 6


def test_a_run_on_a_public_network_says_so_and_is_loaded_with_it(images, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("pooch.os_cache", lambda name: tmp_path / "cache" / name)
    out = tmp_path / "run"
    asked = ["--data", "digits", "--backbone", str(images), "--epochs", "2"]
    done = CliRunner().invoke(app, ["train", *asked, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "cache" / "noisette" / "features").glob("*.safetensors"))) == 2  # to train and to test
    said = " ".join((out / "privacy.txt").read_text().split())
    assert "Features: of the public network tiny-vit, whose weights have the SHA-256" in said
    assert "Trained on: not declared." in said
    assert str(images.parent) not in (out / "run.json").read_text(), "folders of the user are not published"
    with pytest.raises(ValueError, match="began with the model in a folder 'tiny-vit'; give this folder with --model"):
        SavedModel.of_run(out)
    assert SavedModel.of_run(out, model=images).model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
