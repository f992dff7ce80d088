"""Loading public weights from a file, and freezing some of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from noisette.nn import models
from papers import networks as networks  # which registers cifar-tutorial


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
