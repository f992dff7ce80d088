"""The layers of the built-in networks, in order."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch import nn

from noisette.errors import PrivacyError
from noisette.nn import models
from noisette.nn.models.networks import Residual
from noisette.run.private import check_no_batch_norm

IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
LAYER_NORMS = (nn.LayerNorm, nn.GroupNorm)


def layers(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if not list(module.children())]


def kinds(model: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in layers(model)]


def of_kind(model: nn.Module, *kind: type[nn.Module]) -> list[nn.Module]:
    return [layer for layer in layers(model) if isinstance(layer, kind)]


def test_lenets_are_convolution_norm_activation_pooling() -> None:
    convolution = ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"]
    linear = ["Linear", "BatchNorm1d", "ReLU"]
    last = ["Linear", "BatchNorm1d"]
    assert kinds(models.build("bn-lenet-5", IMAGE, 10)) == [*2 * convolution, "Flatten", *2 * linear, *last]
    assert kinds(models.build("bn-lenet-300-100", IMAGE, 10)) == ["Flatten", *2 * linear, *last]
    plain = ["Conv2d", "ReLU", "MaxPool2d", "Conv2d", "ReLU", "MaxPool2d", "Flatten", *2 * ["Linear", "ReLU"], "Linear"]
    assert kinds(models.build("lenet-5", IMAGE, 10)) == plain


def test_activation_and_the_norm_of_the_logits_are_arguments_of_the_lenets() -> None:
    for lenet in (models.lenet_5, models.lenet_300_100):
        model = lenet(IMAGE, 10, norm=models.layer_norm, activation=nn.Tanh, normalised_logits=False)
        assert kinds(model)[-1] == "Linear"
        assert {"Tanh", "LayerNorm"} <= set(kinds(model))
        assert "ReLU" not in kinds(model)


@pytest.mark.parametrize("name", [name for name in models.names() if name.startswith("bn-")])
def test_networks_with_batch_norm_have_it_directly_after_each_layer(name: str) -> None:
    found = layers(models.build(name, COLOUR, 10))
    behind = [after for layer, after in pairwise([*found, None]) if isinstance(layer, nn.Conv2d | nn.Linear)]
    free = {"bn-light-vgg": 1, "bn-resnet-18": 0, "bn-vgg-16": 0}.get(name, 0)
    assert [isinstance(after, BATCH_NORMS) for after in behind] == [True] * (len(behind) - free) + [False] * free
    norms = [layer for layer in found if isinstance(layer, BATCH_NORMS)]
    assert all(norm.affine and norm.track_running_stats for norm in norms)
    assert len(norms) == len(behind) - free


@pytest.mark.parametrize("name", [n for n in models.names() if n.startswith("ln-") and n != "ln-bilstm-dl"])
def test_networks_with_layer_norm_have_it_where_the_others_have_batch_norm(name: str) -> None:
    shape = COLOUR if "lenet" not in name else IMAGE
    own, other = (layers(models.build(n, shape, 10)) for n in (name, name.replace("ln-", "bn-")))
    for mine, theirs in zip(own, other, strict=True):
        assert isinstance(theirs, BATCH_NORMS) == (isinstance(mine, LAYER_NORMS) and mine.weight is not None)


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
    assert all(layer.bias is None for layer in of_kind(model, nn.Conv2d))
    around = [kinds(block.shortcut) for block in model.features.blocks]
    assert around == [["Identity"]] * 2 + [["Conv2d", "BatchNorm2d"], ["Identity"]] * 3
    assert kinds(model.features.blocks[0].body) == ["Conv2d", "BatchNorm2d", "ReLU", "Conv2d", "BatchNorm2d"]
    assert kinds(model)[:3] == ["Conv2d", "BatchNorm2d", "ReLU"]


def test_a_residual_block_adds_before_it_activates() -> None:
    block = Residual(nn.Sequential(nn.Identity()), nn.Identity(), 1)
    assert block(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 4.0]


@pytest.mark.parametrize("name", ["resnet-18", "vgg-16"])
def test_mod_lacks_the_last_norm_and_nothing_else(name: str) -> None:
    whole, mod = (models.build(n, COLOUR, 10).state_dict() for n in (name, f"{name}-mod"))
    assert mod.keys() <= whole.keys()
    gone = sorted(whole.keys() - mod.keys())
    norm = "features.blocks.7.body.conv2_norm" if name == "resnet-18" else "features.conv5_3_norm"
    assert gone == [f"{norm}.{k}" for k in ("bias", "num_batches_tracked", "running_mean", "running_var", "weight")]


def test_vggs_pool_where_the_paper_does() -> None:
    def stages(name: str) -> list[int | str]:
        found = of_kind(models.build(name, COLOUR, 10), nn.Conv2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.Linear)
        return [getattr(x, "out_channels", None) or getattr(x, "out_features", None) or "M" for x in found]

    deep = [*2 * [512], 512, "M"]
    assert stages("vgg-16") == [64, 64, "M", 128, 128, "M", 256, 256, 256, "M", *deep, *deep, 10]
    assert stages("light-vgg") == [64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", "M", 512, 10]
    assert Counter(kinds(models.build("vgg-16", COLOUR, 10)))["BatchNorm2d"] == 13


@pytest.mark.parametrize("network", [models.resnet, models.vgg])
def test_unknown_depths_are_refused(network) -> None:
    with pytest.raises(ValueError, match=r"expected depth to be one of 1\d, .*, got 20"):
        network(COLOUR, 10, depth=20)


@pytest.mark.parametrize("name", ["bn-lenet-5", "bn-lenet-300-100", "resnet-18", "bn-light-vgg"])
def test_networks_with_batch_norm_are_refused_until_it_is_replaced(name: str) -> None:
    model = models.build(name, COLOUR, 10)
    with pytest.raises(PrivacyError) as refusal:
        check_no_batch_norm(model)
    for path, module in model.named_modules():
        assert (path in str(refusal.value)) >= isinstance(module, BATCH_NORMS)
