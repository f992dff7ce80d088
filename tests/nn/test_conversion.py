"""Replacing batch norm in the user's own model: weights and names are kept, and invalid arguments are refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from noisette import PrivacyError
from noisette.nn import FrozenBatchNorm, PerExampleBatchNorm, PublicBatchNorm, convert_batch_norm
from norm_models import NETWORKS, Residual, network

FROM_PUBLIC = [PublicBatchNorm, PerExampleBatchNorm]


@pytest.mark.parametrize("to", [*FROM_PUBLIC, FrozenBatchNorm])
def test_parameters_and_names_of_the_state_dict_stay(to: Any) -> None:
    model, public, _ = network("images")
    model.bn4.eval()
    before = model.state_dict()
    parameters = dict(model.named_parameters())
    convert_batch_norm(model, to=to, public=public if to in FROM_PUBLIC else None)
    assert list(model.state_dict()) == list(before)
    assert all(p is parameters[name] for name, p in model.named_parameters())
    assert isinstance(model.bn1, to)
    assert model.bn4.weight is None
    assert not model.bn4.training
    assert model.bn4.running_mean.dtype is torch.float64


@pytest.mark.parametrize("to", [nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d])
def test_norms_of_one_example_keep_the_affine_weights(to: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3))
    weight = model[1].weight
    convert_batch_norm(model, to=to)
    assert isinstance(model[1], nn.InstanceNorm2d if to is nn.InstanceNorm2d else nn.GroupNorm)
    assert model[1].weight is weight
    assert getattr(model[1], "num_groups", 1) == 1
    assert model(torch.rand(6, 1, 5, 5)).shape == (6, 3, 3, 3)


@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (16, 1), (64, 4), (84, 4), (512, 32), (1024, 32)])
def test_groups_have_at_least_16_channels(channels: int, groups: int) -> None:
    norm = convert_batch_norm(nn.BatchNorm2d(channels), to=nn.GroupNorm)
    assert isinstance(norm, nn.GroupNorm)
    assert norm.num_groups == groups


def test_the_model_may_be_a_batch_norm_itself() -> None:
    norm = convert_batch_norm(nn.BatchNorm1d(2), to=PublicBatchNorm, public=torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    assert isinstance(norm, PublicBatchNorm)
    torch.testing.assert_close(norm(torch.tensor([[1.0, 3.0]])), torch.zeros(1, 2))


def test_one_batch_norm_in_two_places_becomes_one_norm() -> None:
    shared = nn.BatchNorm1d(2)
    model = convert_batch_norm(nn.Sequential(shared, nn.ReLU(), shared), to=nn.GroupNorm)
    assert model[0] is model[2]


def test_models_without_batch_norm_are_not_changed() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    before = [*model.modules()]
    assert convert_batch_norm(model, to=PublicBatchNorm, public=torch.zeros(4, 3)) is model
    assert [*model.modules()] == before
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("name", NETWORKS)
def test_frozen_statistics_are_those_of_the_model(name: str) -> None:
    model, public, x = network(name)
    for _ in range(3):
        model(public)
    truth = model.eval()(x)
    convert_batch_norm(model, to=FrozenBatchNorm)
    assert torch.equal(model.train()(x), truth)
    assert torch.equal(model.eval()(x), truth)


def test_frozen_statistics_may_be_those_of_a_public_batch() -> None:
    model, public, x = network("images")
    convert_batch_norm(model, to=FrozenBatchNorm, public=public)
    fixed = model.bn2.running_var.clone()
    other, _, _ = network("images")
    convert_batch_norm(other, to=PublicBatchNorm, public=public)
    torch.testing.assert_close(model(x), other(x))
    with torch.no_grad():
        model.conv1.weight.mul_(2)
    model(x)
    assert torch.equal(model.bn2.running_var, fixed)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": PublicBatchNorm}, "PublicBatchNorm takes its statistics from public examples"),
        ({"to": PublicBatchNorm, "public": torch.zeros(1, 2, 6, 6)}, "at least two public examples"),
        ({"to": PublicBatchNorm, "public": torch.full((3, 2, 6, 6), torch.nan)}, "not finite"),
        ({"to": PublicBatchNorm, "public": (torch.zeros(3, 2), torch.zeros(4, 2))}, "3, 4 examples"),
        ({"to": nn.GroupNorm, "public": torch.zeros(3, 2, 6, 6)}, "normalises each example alone; leave public out"),
        ({"to": nn.Linear}, "expected `to` to be PublicBatchNorm"),
        (
            {"to": PublicBatchNorm, "public": torch.zeros(5, 3, 6, 6)},
            r"does not take the public batch, of shape \(5, 3",
        ),
        (
            {"to": nn.GroupNorm, "public": torch.zeros(1, 2, 6, 6), "every": 0},
            "(?s)normalises each example.*at least two.*every",
        ),
    ],
)
def test_invalid_arguments_are_refused_and_nothing_is_changed(arguments: dict[str, Any], message: str) -> None:
    model = Residual()
    with pytest.raises(ValueError, match=message):
        convert_batch_norm(model, **arguments)
    assert isinstance(model.bn1, nn.BatchNorm2d)
    assert not model._forward_pre_hooks


def test_public_examples_that_are_private_records_are_refused() -> None:
    model, public, x = network("images")
    x[3] = public[2]
    with pytest.raises(PrivacyError, match=r"1 public examples are private records too \(the first is number 2\)"):
        convert_batch_norm(model, to=PublicBatchNorm, public=public, private=x)
    assert isinstance(model.bn1, nn.BatchNorm2d)


# Batch norms of other libraries: what they add to normalising is never lost in silence


class NormAct(nn.BatchNorm2d):
    """In the manner of timm: the activation is part of the norm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


class Doubled(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class DoubledAgain(Doubled):
    """Adds nothing to a class that does."""


def with_part(name: str, part: nn.Module | nn.Parameter) -> Callable[[int], nn.Module]:
    def made(channels: int) -> nn.Module:
        norm = nn.BatchNorm2d(channels)
        setattr(norm, name, part)
        return norm

    return made


def hooked(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    norm.register_forward_hook(lambda module, args, output: output.relu())
    return norm


def of_the_instance(channels: int) -> nn.Module:
    norm = nn.BatchNorm2d(channels)
    norm.forward = lambda input: input.relu()
    return norm


def parametrized(channels: int) -> nn.Module:
    return parametrizations.weight_norm(nn.BatchNorm2d(channels), dim=None)


ADDING: dict[str, tuple[Callable[[int], nn.Module], str]] = {
    "activation": (NormAct, "NormAct has a forward of its own"),
    "modules": (with_part("act", nn.ReLU()), "modules of its own: act"),
    "forward": (Doubled, "Doubled has a forward of its own"),
    "inherited forward": (DoubledAgain, "DoubledAgain has a forward of its own"),
    "parameter": (
        with_part("temperature", nn.Parameter(torch.ones(1))),
        "parameters or buffers of its own: temperature",
    ),
    "hook": (hooked, "BatchNorm2d has hooks"),
    "forward of the instance": (of_the_instance, "forward of its own"),
    "parametrization": (parametrized, "of its own"),
    "lazy": (lambda channels: nn.LazyBatchNorm2d(), "LazyBatchNorm2d is lazy"),
}
TARGETS: list[dict[str, Any]] = [
    {"to": nn.GroupNorm},
    {"to": nn.InstanceNorm2d},
    {"to": FrozenBatchNorm},
    {"to": PublicBatchNorm, "public": torch.randn(4, 2, 5, 5)},
]


@pytest.mark.parametrize(
    ("make", "message", "target"),
    [(*added, target) for added, target in zip(ADDING.values(), cycle(TARGETS))],
    ids=ADDING,
)
def test_what_adds_something_is_refused_by_name_and_nothing_is_changed(
    make: Callable[[int], nn.Module], message: str, target: dict[str, Any]
) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Sequential(make(4)))
    before = [*model.modules()]
    with pytest.raises(ValueError, match=rf"1 batch norms do more.*\n  2\.0  .*{message}"):
        convert_batch_norm(model, **target)
    assert [*model.modules()] == before


def test_all_are_listed() -> None:
    with pytest.raises(ValueError, match=r"(?s)2 batch norms.*0  NormAct has.*1  Doubled has"):
        convert_batch_norm(nn.Sequential(NormAct(2), Doubled(2), nn.BatchNorm2d(2)), to=nn.GroupNorm)
    with pytest.raises(ValueError, match="the model itself  NormAct has a forward of its own"):
        convert_batch_norm(NormAct(2), to=FrozenBatchNorm)


class OtherDefaults(nn.BatchNorm2d):
    """Only its defaults are others."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-3, momentum=0.01)
        self.label = "norm"

    def _check_input_dim(self, input: Tensor) -> None:
        pass


@pytest.mark.parametrize("make", [OtherDefaults, nn.SyncBatchNorm, nn.BatchNorm2d], ids=lambda c: c.__name__)
def test_what_adds_nothing_is_converted(make: Any) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), make(4)).eval()
    model[1].running_var.fill_(2.0)
    x = torch.randn(3, 2, 6, 6)
    expected = nn.functional.batch_norm(model[0](x), torch.zeros(4), torch.full((4,), 2.0), eps=model[1].eps)
    convert_batch_norm(model, to=FrozenBatchNorm)
    assert isinstance(model[1], FrozenBatchNorm)
    torch.testing.assert_close(model(x), expected)


def test_a_lazy_norm_that_has_its_shape_is_one_of_torch() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.LazyBatchNorm2d())
    model(torch.ones(2, 2, 5, 5))
    assert isinstance(convert_batch_norm(model, to=nn.GroupNorm)[1], nn.GroupNorm)
