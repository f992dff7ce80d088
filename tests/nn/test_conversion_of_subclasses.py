"""Batch norms of other libraries: what they add to normalising is never lost in silence."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from noisette.nn import FrozenBatchNorm, PublicBatchNorm, convert_batch_norm


class NormAct(nn.BatchNorm2d):
    """In the manner of timm: the activation is part of the norm."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, input: Tensor) -> Tensor:
        return self.act(self.drop(super().forward(input)))


class NormActOfModulesAlone(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.act = nn.ReLU()


class Doubled(nn.BatchNorm2d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class DoubledAgain(Doubled):
    """Adds nothing to a class that does."""


class Tempered(nn.BatchNorm2d):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.temperature = nn.Parameter(torch.ones(1))


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
    "modules": (NormActOfModulesAlone, "modules of its own: act"),
    "forward": (Doubled, "Doubled has a forward of its own"),
    "inherited forward": (DoubledAgain, "DoubledAgain has a forward of its own"),
    "parameter": (Tempered, "parameters or buffers of its own: temperature"),
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


def test_a_model_that_is_such_a_norm_itself() -> None:
    with pytest.raises(ValueError, match="the model itself  NormAct has a forward of its own"):
        convert_batch_norm(NormAct(2), to=FrozenBatchNorm)


class OtherDefaults(nn.BatchNorm2d):
    """Only its defaults are others."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-3, momentum=0.01)
        self.label = "norm"

    def _check_input_dim(self, input: Tensor) -> None:
        pass


class FrozenBatchNorm2d(nn.Module):
    """In the manner of torchvision: constants alone, and no batch norm by its class."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(channels))
        self.register_buffer("running_mean", torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.running_mean[:, None, None]) * self.weight[:, None, None]


@pytest.mark.parametrize("make", [OtherDefaults, nn.SyncBatchNorm, nn.BatchNorm2d], ids=lambda c: c.__name__)
def test_what_adds_nothing_is_converted(make: Any) -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), make(4)).eval()
    model[1].running_var.fill_(2.0)
    x = torch.randn(3, 2, 6, 6)
    expected = nn.functional.batch_norm(model[0](x), torch.zeros(4), torch.full((4,), 2.0), eps=model[1].eps)
    convert_batch_norm(model, to=FrozenBatchNorm)
    assert isinstance(model[1], FrozenBatchNorm)
    torch.testing.assert_close(model(x), expected)


def test_frozen_norms_of_other_libraries_are_left_alone() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), FrozenBatchNorm2d(4))
    kept = model[1]
    assert convert_batch_norm(model, to=nn.GroupNorm)[1] is kept


def test_a_lazy_norm_that_has_its_shape_is_one_of_torch() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.LazyBatchNorm2d())
    model(torch.ones(2, 2, 5, 5))
    assert isinstance(convert_batch_norm(model, to=nn.GroupNorm)[1], nn.GroupNorm)
