"""The models that come with noisette, and models of the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from noisette import models
from noisette.bounding import PerExampleClip
from noisette.preflight import Call, prove


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *[(name, (1, 28, 28)) for name in models.names()],
        ("cnn", (1, 8, 8)),
        ("cnn", (3, 32, 32)),
        ("scattering", (3, 32, 32)),
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
        ("resnet", "there are cnn, linear, mlp, scattering"),
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


def test_images_are_asked_for() -> None:
    with pytest.raises(ValueError, match="needs images"):
        models.build("cnn", (12,), 2)


def test_centred() -> None:
    assert nn.Sequential(models.Centred())(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1.0, 0.0, 1.0]
