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
        *[(name, (1, 28, 28)) for name in models.names() if not name.startswith("bn-")],
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
        ("resnet", "there are .*cnn, .*linear, mlp, mlp1000, scattering"),
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
        ("cifar-tutorial", (3, 32, 23), "24 x 24 pixels or more, got examples of shape .3, 32, 23."),
    ],
)
def test_images_are_asked_for(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 2)


def test_centred() -> None:
    assert nn.Sequential(models.Centred())(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1.0, 0.0, 1.0]


def test_fixed_features_stand_still_in_every_mode() -> None:
    """Batch norm that trains would make the features of one example depend on the others."""
    model = models.FixedFeatures(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()), nn.Dropout())
    x = torch.rand(5, 3)
    for _ in range(2):
        torch.testing.assert_close(model.features(x)[:1], model.features(x[:1]))
        assert model.head.training
        assert model.train() is model
    assert not model.eval().head.training
