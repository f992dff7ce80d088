"""The models that come with noisette, and models of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from noisette import models, privatize
from noisette.bounding import PerExampleClip
from noisette.preflight import Call, prove


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[(name, (1, 28, 28)) for name in models.names()],
        ("cnn", (1, 8, 8)),
        ("cnn", (3, 32, 32)),
        ("scattering", (3, 32, 32)),
        ("cifar-tutorial", (3, 32, 32)),
        ("mlp1000", (60,)),
        ("mlp", (113,)),
        ("linear", (5,)),
    ],
)
def test_scores_have_one_row_per_example_and_no_coupling(name: str, shape: tuple[int, ...]) -> None:
    model = models.build(name, shape, 7)
    inputs = torch.rand(8, *shape)
    assert model(inputs).shape == (8, 7)
    clip = PerExampleClip(model, max_grad_norm=1.0)
    prove(clip, Call((inputs,), {}))
    clip.close()


def test_fixed_features_have_nothing_to_train() -> None:
    model = models.build("scattering", (1, 28, 28), 10)
    assert isinstance(model, models.FixedFeatures)
    assert not list(model.features.parameters())
    assert list(model.state_dict()) == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "there are cifar-tutorial, cnn, linear, mlp, mlp1000, scattering"),
        ("missing_package:net", "missing_package"),
        ("own:absent", "absent"),
        ("own:takes_one", "called with"),
        ("own:not_a_module", "not a torch.nn.Module"),
        ("own:wrong_classes", "does not fit the labels"),
        ("own:wrong_shape", "cannot take examples of shape"),
    ],
)
def test_models_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
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
    ("name", "shape", "message"),
    [
        ("cnn", (12,), "needs images"),
        ("cifar-tutorial", (12,), "needs images"),
        ("cifar-tutorial", (3, 32, 23), "24 x 24 pixels or more, got .3, 32, 23."),
    ],
)
def test_images_are_asked_for(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 2)


def test_centred() -> None:
    assert nn.Sequential(models.Centred())(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1.0, 0.0, 1.0]


# The networks of Abadi et al. 2016


def trained_scalars(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_networks_have_the_layers_of_the_paper() -> None:
    cifar = models.build("cifar-tutorial", (3, 32, 32), 10)
    assert trained_scalars(cifar) == 1_144_138
    assert cifar.features[:5](torch.rand(2, 3, 32, 32)).shape == (2, 64, 12, 12)
    assert cifar.features[:8](torch.rand(2, 3, 32, 32)).shape == (2, 64, 6, 6)
    assert [layer.out_features for layer in cifar.head if isinstance(layer, nn.Linear)] == [384, 384, 10]
    mnist = models.build("mlp1000", (60,), 10)
    assert [p.shape for p in mnist.parameters()] == [(1000, 60), (10, 1000)]


def test_cifar_network_sees_the_middle_of_the_image_alone_and_neither_its_brightness_nor_its_contrast() -> None:
    model, image = models.build("cifar-tutorial", (3, 32, 33), 10), torch.rand(1, 3, 32, 33)
    padded = image.clone()
    padded[..., :4, :] = padded[..., 28:, :] = padded[..., :4] = padded[..., 28:] = 7.0
    torch.testing.assert_close(model(padded), model(image))
    torch.testing.assert_close(model(0.3 * image + 0.5), model(image), rtol=1e-3, atol=1e-3)
    middle = model.features[:2](image)
    assert middle.shape == (1, 3, 24, 24)
    torch.testing.assert_close(middle.mean(), torch.tensor(0.0), rtol=0, atol=1e-5)
    torch.testing.assert_close(middle.var(correction=0), torch.tensor(1.0), rtol=1e-3, atol=0)


def test_networks_begin_with_normal_weights_cut_at_two_deviations() -> None:
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
    for weight, deviation in [(weight.detach(), deviation) for weight, deviation in expected]:
        assert float(weight.abs().max()) <= 2 * deviation
        assert float(weight.std()) == pytest.approx(0.87962 * deviation, rel=0.06)  # of a normal number cut there
    biases = {name: float(value.detach().unique()) for name, value in cifar.named_parameters() if "bias" in name}
    assert list(biases.values()) == pytest.approx([0, 0.1, 0.1, 0.1, 0])


# Weights from a file


def saved(model: nn.Module, path: Path, *, without: tuple[str, ...] = ("head.scores",)) -> Path:
    save_file({name: v for name, v in model.state_dict().items() if not name.startswith(without)}, path)
    return path


def frozen_names(model: nn.Module) -> set[str]:
    return {name.rpartition(".")[0] for name, p in model.named_parameters() if not p.requires_grad}


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        (("features",), {"features.conv1", "features.conv2"}),
        (("features", "head.fc1"), {"features.conv1", "features.conv2", "head.fc1"}),
        (("features.conv1",), {"features.conv1"}),
        ((), set()),
    ],
)
def test_weights_of_a_file_are_loaded_and_the_parts_named_are_frozen(
    tmp_path: Path, frozen: tuple[str, ...], expected: set[str]
) -> None:
    public, own = models.build("cifar-tutorial", (3, 32, 32), 100), models.build("cifar-tutorial", (3, 32, 32), 10)
    scores = own.head.scores.weight.clone()
    model = models.pretrained(own, saved(public, tmp_path / "public.safetensors"), frozen=frozen)
    assert frozen_names(model) == expected
    assert isinstance(model, models.FixedFeatures) == ("features" in frozen)
    for name, value in load_file(tmp_path / "public.safetensors").items():
        torch.testing.assert_close(model.state_dict()[name], value)
    torch.testing.assert_close(model.head.scores.weight, scores)
    assert model.state_dict().keys() == public.state_dict().keys()


def test_head_on_frozen_features_is_trained_privately(tmp_path: Path) -> None:
    path = saved(models.build("cifar-tutorial", (3, 32, 32), 100), tmp_path / "public.safetensors")
    model = models.pretrained(models.build("cifar-tutorial", (3, 32, 32), 10), path, frozen=("features", "head.fc1"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        features = model.features(torch.rand(20, 3, 32, 32))
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
    with privatize(
        PerExampleClip(model.head, max_grad_norm=1.0),
        optimizer,
        (features, torch.arange(20) % 10),
        expected_batch_size=10,
        sampling_rate=0.5,
        steps=2,
        noise_multiplier=6.0,
    ) as run:
        for batch in run.batches():
            for x, y in batch.pieces(20):
                run.backward(nn.functional.cross_entropy(model.head(x), y, reduction="none"))
            optimizer.step()
            optimizer.zero_grad()
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved == {f"head.{layer}.{kind}" for layer in ("fc2", "scores") for kind in ("weight", "bias")}


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
        "head.fc2.weight: holds values that are not finite",
        "head.scores.weight: of shape (100, 384) in the file and (10, 384) in the model; leave it out of the file to "
        "train it anew",
        "head.fc3.weight: the model has no such tensor",
        "hed: to be frozen, but no part of the model with weights is called so",
        "head.relu1: to be frozen, but no part of the model with weights is called so",
    }
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not frozen_names(model)


def test_what_is_no_file_of_tensors_is_refused(tmp_path: Path) -> None:
    model = models.build("linear", (4,), 2)
    with pytest.raises(FileNotFoundError):
        models.pretrained(model, tmp_path / "absent.safetensors")
    torch.save(model.state_dict(), tmp_path / "pickle.safetensors")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        models.pretrained(model, tmp_path / "pickle.safetensors")
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(ValueError, match="the file holds no tensors"):
        models.pretrained(model, tmp_path / "empty.safetensors", frozen=())


def test_fixed_features_stand_still_in_every_mode() -> None:
    """Batch norm that trains would make the features of one example depend on the others."""
    model = models.FixedFeatures(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()), nn.Dropout())
    x = torch.rand(5, 3)
    for _ in range(2):
        torch.testing.assert_close(model.features(x)[:1], model.features(x[:1]))
        assert model.head.training
        assert model.train() is model
    assert not model.eval().head.training
