"""The built-in models, and the user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from noisette.nn import models

IMAGE, COLOUR, TEXT = (1, 28, 28), (3, 32, 32), (20, 100)
# Shape of an example, classes, and the number of parameters, as published where the network is.
NETWORKS = {
    "linear": ((113,), 10, 113 * 10 + 10),
    "mlp": ((113,), 10, 113 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
    "mlp1000": ((60,), 10, 70_000),
    "cnn": (IMAGE, 10, 26_010),
    "scattering": (IMAGE, 10, 81 * 7 * 7 * 10 + 10),
    "scattering-cnn": (IMAGE, 10, 81 * 16 * 9 + 16 + 16 * 32 * 9 + 32 + 512 * 32 + 32 + 32 * 10 + 10),
    "patches": (COLOUR, 10, 2 * 400 * 4 * 10 + 10),
    "multi-scale-patches": (COLOUR, 10, 2 * 2 * 400 * 4 * 10 + 10),
    "patches-and-scattering": (COLOUR, 10, (2 * 2 * 400 * 4 + 3 * 81 * 4 * 4) * 10 + 10),
    "lenet-300-100": (IMAGE, 10, 266_610),
    "bn-lenet-300-100": (IMAGE, 10, 266_610 + 2 * (300 + 100 + 10)),
    "ln-lenet-300-100": (IMAGE, 10, 266_610 + 2 * (300 + 100 + 10)),
    "lenet-5": (IMAGE, 10, 61_706),
    "bn-lenet-5": (IMAGE, 10, 61_706 + 2 * (6 + 16 + 120 + 84 + 10)),
    "ln-lenet-5": (IMAGE, 10, 61_706 + 2 * (6 + 16 + 120 + 84 + 10)),
    "cifar-tutorial": (COLOUR, 10, 1_144_138),
    "bn-cifar-tutorial": (COLOUR, 10, 1_144_138 + 2 * (64 + 64 + 384 + 384 + 10)),
    "ln-cifar-tutorial": (COLOUR, 10, 1_144_138 + 2 * (64 + 64 + 384 + 384 + 10)),
    "tf-tutorial": (COLOUR, 10, 1_068_298),
    "bn-tf-tutorial": (COLOUR, 10, 1_068_298 + 2 * (64 + 64 + 384 + 192 + 10)),
    "ln-tf-tutorial": (COLOUR, 10, 1_068_298 + 2 * (64 + 64 + 384 + 192 + 10)),
    "resnet-18": (COLOUR, 10, 11_173_962),
    "resnet-18-mod": (COLOUR, 10, 11_173_962 - 2 * 512),
    "bn-resnet-18": (COLOUR, 10, 11_173_962 + 2 * 10),
    "vgg-16": (COLOUR, 10, 14_728_266),
    "vgg-16-mod": (COLOUR, 10, 14_728_266 - 2 * 512),
    "bn-vgg-16": (COLOUR, 10, 14_728_266 + 2 * 10),
    "light-vgg": (COLOUR, 10, 2_462_282),
    "bn-light-vgg": (COLOUR, 10, 2_462_282 + 2 * (2 * 64 + 2 * 128 + 4 * 256 + 512)),
    "ln-light-vgg": (COLOUR, 10, 2_462_282 + 2 * (2 * 64 + 2 * 128 + 4 * 256 + 512)),
    "bilstm-dl": (TEXT, 4, 34_564),
    "ln-bilstm-dl": (TEXT, 4, 34_564 + 2 * 2 * (128 + 128 + 32)),
    "encoder": ((20, 200), 2, 483_002),
    "lipschitz-linear": (IMAGE, 10, 784 * 10),
    "lipschitz-dense": (IMAGE, 10, 784 * 128 + 128 * 10),
    "lipschitz-rows": ((9,), 2, 10 * 64 + (10 + 64) * 2),
    "lipschitz-patch": (IMAGE, 10, 49 * 16 + 16 * 4 * 4 * 10),
    "lipschitz-mixer": (COLOUR, 10, 48 * 64 + 2 * 64 * 64 + 2 * 64 * 64 + 64 * 64 * 10),
    "dct-lipschitz-dense": (IMAGE, 10, 64 * 128 + 128 * 10),
    "scattering-lipschitz-linear": (IMAGE, 10, 17 * 7 * 7 * 10),
}


def test_the_table_above_has_every_model() -> None:
    of_words = {
        "transformer",
        "bag-of-words",
        "word-counts",
        "ranked-word-counts",
        "word-counts-and-vectors",
    }  # test_text_models.py
    assert set(models.names()) == set(NETWORKS) | of_words


@pytest.mark.parametrize(("name", "shape", "classes", "numbers"), [(name, *rest) for name, rest in NETWORKS.items()])
def test_networks_have_the_published_number_of_parameters_and_one_row_of_scores_for_each_example(
    name: str, shape: tuple[int, ...], classes: int, numbers: int
) -> None:
    # Weights that are projected, and a dictionary of patches, must have values.
    with torch.device("cpu" if "lipschitz" in name or "patches" in name else "meta"):
        model = models.build(name, shape, classes)
        assert model(torch.rand(3, *shape)).shape == (3, classes)
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == numbers


def test_the_trial_call_of_build_does_not_change_the_model() -> None:
    model = models.build("bn-lenet-5", IMAGE, 10)
    assert {type(m).__name__ for m in model.modules() if not m.training} == set()
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)):
        assert int(norm.num_batches_tracked) == 0
        assert not norm.running_mean.any()
    assert not models.build("scattering", IMAGE, 10).features.training


def test_fixed_features_have_no_parameters() -> None:
    model = models.build("scattering", (1, 28, 28), 10)
    assert isinstance(model, models.FixedFeatures)
    assert not list(model.features.parameters())
    assert list(model.state_dict()) == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "there are linear, mlp, mlp1000, cnn, scattering, scattering-cnn, patches, multi-scale-patches, "),
        ("missing_package:net", "missing_package"),
        ("own:absent", "absent"),
        ("own:takes_one", "called with"),
        ("own:not_a_module", "not a torch.nn.Module"),
        ("own:wrong_classes", "does not fit the labels"),
        ("own:wrong_shape", "cannot take examples of shape"),
        ("own:of_a_dictionary", "return a model that takes this tensor alone"),
        ("own:of_two", "return a model that takes this tensor alone"),
    ],
)
def test_models_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "class OfADictionary(nn.Linear):\n"
        "    def forward(self, batch): return super().forward(batch.get('x'))\n"
        "class OfTwo(nn.Linear):\n"
        "    def forward(self, x, mask): return super().forward(x * mask)\n"
        "def of_a_dictionary(shape, classes): return OfADictionary(4, 2)\n"
        "def of_two(shape, classes): return OfTwo(4, 2)\n"
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
        ("lipschitz-mixer", (3, 32, 30), "patches of 4 x 4 pixels, got .3, 32, 30."),
        ("lipschitz-patch", (12,), "needs images"),
        ("lipschitz-rows", (1, 8, 8), "needs rows of numbers"),
        ("scattering-lipschitz-linear", (1, 8, 8), "12 x 12 pixels or more"),
        ("dct-lipschitz-dense", (1, 7, 8), "8 x 8 pixels or more"),
        ("bilstm-dl", (3, 32, 32), r"needs texts as word vectors \(tokens, dimensions\), got .* \(3, 32, 32\)"),
        ("ln-bilstm-dl", (20,), "needs texts"),
        ("cifar-tutorial", (12,), "needs images"),
        ("lenet-5", (1, 28, 11), "12 x 12 pixels or more"),
        ("vgg-16", (3, 28, 32), "32 x 32 pixels or more"),
        ("light-vgg", (3, 7, 8), "8 x 8 pixels or more"),
        ("resnet-18", (12,), "needs images"),
        ("tf-tutorial", (3, 32, 23), "'tf-tutorial' needs images of 24 x 24"),
        ("cifar-tutorial", (3, 32, 23), "24 x 24 pixels or more, got examples of shape .3, 32, 23."),
    ],
)
def test_errors_name_the_examples_that_a_network_needs(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 2)


def test_centred() -> None:
    assert nn.Sequential(models.Centred())(torch.tensor([0.0, 0.5, 1.0])).tolist() == [-1.0, 0.0, 1.0]


def test_fixed_features_stay_in_evaluation_mode() -> None:
    """Batch norm in training mode would make the features of one example depend on the others."""
    model = models.FixedFeatures(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()), nn.Dropout())
    x = torch.rand(5, 3)
    for _ in range(2):
        torch.testing.assert_close(model.features(x)[:1], model.features(x[:1]))
        assert model.head.training
        assert model.train() is model
    assert not model.eval().head.training
