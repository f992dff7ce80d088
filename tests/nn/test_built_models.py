"""The built-in models, and the user's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from engine_check import check
from model_cases import Case, cross_entropy, labelled
from noisette.clipping.engines import BookKeeping
from noisette.errors import PrivacyError
from noisette.nn import models
from noisette.run.private import check_no_batch_norm

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
    "encoder": ((20, 200), 2, 483_002),
    "lipschitz-linear": (IMAGE, 10, 784 * 10),
    "lipschitz-dense": (IMAGE, 10, 784 * 128 + 128 * 10),
    "lipschitz-mixer": (COLOUR, 10, 48 * 64 + 2 * 64 * 64 + 2 * 64 * 64 + 64 * 64 * 10),
    "scattering-lipschitz-linear": (IMAGE, 10, 17 * 7 * 7 * 10),
}


def test_the_table_above_has_every_model() -> None:
    own = {name for name, model in models.REGISTRY.items() if isinstance(model.factory, str) and not model.of_words}
    assert own == set(NETWORKS)  # test_text_models.py has those of words


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
def test_models_that_do_not_fit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
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
    ("name", "shape", "message"),
    [
        ("cnn", (12,), "needs images"),
        ("lipschitz-mixer", (3, 32, 30), "patches of 4 x 4 pixels, got .3, 32, 30."),
        ("scattering-lipschitz-linear", (1, 8, 8), "12 x 12 pixels or more"),
        ("resnet-18", (12,), "needs images"),
    ],
)
def test_errors_name_the_examples_that_a_network_needs(name: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 2)


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


def test_layer_norm_normalises_all_values_of_one_example() -> None:
    for norm, shape in ((models.layer_norm(6, 2), (6, 5, 4)), (models.layer_norm(6, 0), (6,))):
        x = torch.randn(3, *shape) * torch.rand(3, *shape)
        rows = x.flatten(1)
        expected = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, correction=0, keepdim=True) + 1e-5).sqrt()
        torch.testing.assert_close(norm(x).flatten(1), expected)


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


@pytest.mark.parametrize(
    ("network", "shape"),
    [(partial(models.resnet, width=2, norm=models.layer_norm), (3, 8, 8)), (models.encoder, (5, 6))],
    ids=["resnet-18", "encoder"],
)
def test_clipped_sums_are_exact(network: Callable[..., nn.Module], shape: tuple[int, ...]) -> None:
    case = Case("", partial(network, shape, 4), labelled(*shape), cross_entropy)
    check(case, BookKeeping(), b=3, dtype=torch.float64)
