"""A captured step sees changes of the plain values that an honest loop changes: none makes it go on with an older one.

What it does not see (attributes deep inside of objects, or of classes) the comparisons with the step find.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError

# Schedulers that are stepped without their optimizer.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")
SCALE = 1.0
SETTINGS: dict[str, Any] = {"scale": 1.0}
HALF = np.float64(0.5)
elsewhere = types.ModuleType("elsewhere")
elsewhere.__dict__["SCALE"] = 1.0
Change = Callable[[], object]
Loss = Callable[..., Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(5, 6), nn.Linear(6, 4)
        self.drop = Halved()
        self.scale = 1.0
        self.plain = torch.ones(6, dtype=torch.float64)
        self.register_buffer("kept", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.first(x).tanh()) * self.scale
        if not self.training:
            hidden = hidden.relu()
        return self.last(hidden * self.plain * self.kept)


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2 if self.training else x


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def scaled(scale: float, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return scale * cross_entropy(model, x, y)


class Settings:
    scale = 1.0


class Trainer:
    """A loss as a method, and what it reads."""

    def __init__(self) -> None:
        self.beta, self.steps = 1.0, 0
        self.teacher = nn.Sequential(nn.Sequential(nn.Dropout(0.0)))
        parameters = [nn.Parameter(torch.zeros(1))]
        self.optimizer = torch.optim.SGD(parameters, lr=1.0)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)

    def loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        innermost = self.teacher[0][0]
        return self.beta * (0.5 if innermost.training else 1.0) * cross_entropy(model, x, y)

    def by_rate(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.optimizer.param_groups[0]["lr"] * cross_entropy(model, x, y)

    def by_scheduler(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.scheduler.get_last_lr()[0] * cross_entropy(model, x, y)

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.beta * cross_entropy(model, x, y)


def trainer(change: Callable[[Trainer], object], method: str = "loss") -> Callable[[Net, pytest.MonkeyPatch], Any]:
    def scene(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
        owner = Trainer()
        return getattr(owner, method), lambda: change(owner)

    return scene


def of_model(change: Callable[[Net], object]) -> Callable[[Net, pytest.MonkeyPatch], tuple[Loss, Change]]:
    return lambda model, patch: (cross_entropy, lambda: change(model))


def of_global(loss: Loss, change: Callable[[pytest.MonkeyPatch], object]) -> Any:
    return lambda model, patch: (loss, lambda: change(patch))


def cell(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
    scale = 1.0

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return scaled(scale, model, x, y)

    def change() -> None:
        nonlocal scale
        scale = 2.0

    return loss, change


def default(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
    def loss(model: nn.Module, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return scaled(scale, model, x, y)

    return loss, lambda: setattr(loss, "__defaults__", (2.0,))


def rate_of_optimizer(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return scaled(optimizer.param_groups[0]["lr"], model, x, y)

    return loss, lambda: optimizer.param_groups[0].update(lr=0.5)


def rate_of_scheduler(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loss = partial(by_scheduler, scheduler)
    return loss, scheduler.step


def by_scheduler(scheduler: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return scaled(scheduler.get_last_lr()[0], model, x, y)


def rate_of_the_model(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
    model.optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # pyright: ignore[reportArgumentType]

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return scaled(model.optimizer.param_groups[0]["lr"], model, x, y)

    return loss, lambda: model.optimizer.param_groups[0].update(lr=0.5)  # pyright: ignore


def a_helper(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
    settings = SimpleNamespace(beta=1.0)

    def weight() -> float:
        return settings.beta

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return scaled(weight(), model, x, y)

    return loss, lambda: setattr(settings, "beta", 2.0)


def lists(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Change]:
    scales = [1.0]
    return lambda model, x, y: scaled(scales[0], model, x, y), lambda: scales.__setitem__(0, 2.0)


def replaced_parameter(model: Net) -> None:
    model.first.weight = nn.Parameter(2 * model.first.weight.detach())


def freeze(model: Net) -> None:
    model.first.requires_grad_(False)


SCENES: dict[str, Callable[[Net, pytest.MonkeyPatch], tuple[Loss, Change]]] = {
    "an attribute of a trainer": trainer(lambda owner: setattr(owner, "beta", 2.0)),
    "an attribute of an object that is the loss": trainer(lambda owner: setattr(owner, "beta", 2.0), "__call__"),
    "a loss that is an object": lambda model, patch: (
        (owner := Trainer()), lambda: setattr(owner, "beta", 2.0)
    ),
    "the mode of a part of another model": trainer(lambda owner: owner.teacher.eval()),
    "a rate that a trainer reads": trainer(lambda owner: owner.optimizer.param_groups[0].update(lr=0.5), "by_rate"),
    "a scheduler of a trainer": trainer(lambda owner: owner.scheduler.step(), "by_scheduler"),
    "a rate of an optimizer in a closure": rate_of_optimizer,
    "a scheduler in a partial": rate_of_scheduler,
    "a rate of an optimizer that the model holds": rate_of_the_model,
    "a setting that a helper reads": a_helper,
    "a cell": cell,
    "a default": default,
    "a global name of the loss": of_global(
        lambda model, x, y: scaled(SCALE, model, x, y), lambda patch: patch.setattr(sys.modules[__name__], "SCALE", 2.0)
    ),
    "an entry of a global dictionary": of_global(
        lambda model, x, y: scaled(SETTINGS["scale"], model, x, y), lambda patch: patch.setitem(SETTINGS, "scale", 2.0)
    ),
    "a name of another module": of_global(
        lambda model, x, y: scaled(elsewhere.SCALE, model, x, y), lambda patch: patch.setattr(elsewhere, "SCALE", 2.0)
    ),
    "an attribute of a global class": of_global(
        lambda model, x, y: scaled(Settings.scale, model, x, y), lambda patch: patch.setattr(Settings, "scale", 2.0)
    ),
    "a function that the loss calls": of_global(
        cross_entropy, lambda patch: patch.setattr(F, "cross_entropy", lambda out, y: out.square().sum())
    ),
    "a NumPy number": of_global(
        lambda model, x, y: scaled(float(HALF), model, x, y),
        lambda patch: patch.setattr(sys.modules[__name__], "HALF", np.float64(0.75)),
    ),
    "an element of a list": lists,
    "another loss": lambda model, patch: (cross_entropy, lambda: (lambda model, x, y: model(x).square().sum())),
    "an argument of a partial": lambda model, patch: (partial(scaled, 1.0), lambda: partial(scaled, 2.0)),
    "the mode of a part": of_model(lambda model: model.first.eval() and model.drop.eval()),
    "the mode of the model": of_model(lambda model: model.eval()),
    "an attribute of the model": of_model(lambda model: setattr(model, "scale", 2.0)),
    "a tensor of the model, written": of_model(lambda model: model.plain.mul_(2.0)),
    "a tensor of the model, replaced by one that is made inside": of_model(lambda model: setattr(model, "plain", 2.0)),
    "a buffer, written": of_model(lambda model: model.kept.mul_(2.0)),
    "a buffer, replaced": of_model(lambda model: setattr(model, "kept", 2 * model.kept)),
    "loaded weights": of_model(lambda model: model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()})),
    "weights in new memory": of_model(lambda model: setattr(model.first.weight, "data", 2 * model.first.weight.data)),
    "a replaced parameter that is not trained": of_model(replaced_parameter),
    "a frozen part": of_model(freeze),
    "a hook": of_model(lambda model: model.first.register_forward_hook(lambda module, args, output: 2 * output)),
    "a part": of_model(lambda model: setattr(model, "first", nn.Sequential(model.first, nn.ReLU()))),
}  # fmt: skip


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 4, (6,))


@pytest.mark.parametrize("name", SCENES)
def test_a_change_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call after the change is the fifth of the graph, which is not compared with the step itself."""
    model = Net().double()
    loss, change = SCENES[name](model, monkeypatch)
    captured, eager = PerExampleClip(model, 1e3, capture="graph"), PerExampleClip(model, 1e3, capture="eager")
    x, y = batch()
    before = outcome(eager, loss, x, y)
    for _ in range(5):
        outcome(captured, loss, x, y)
    assert captured.captured_operations > 0, "not captured"
    assert not captured.capture_problems
    changed = change()
    if callable(changed) and not isinstance(changed, nn.Module):
        loss = changed
    found, expected = outcome(captured, loss, x, y), outcome(eager, loss, x, y)
    for clip in (captured, eager):
        clip.close()  # one whose model was left by an error, in a call for the other clip, still records
    if isinstance(expected, Tensor):
        assert isinstance(found, Tensor), found
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        assert isinstance(before, Tensor)
        assert not torch.equal(expected, before), "the change changes nothing"
    else:
        assert found == expected


def outcome(clip: PerExampleClip, loss: Loss, x: Tensor, y: Tensor) -> Tensor | str:
    """The gradient, or what the error says."""
    try:
        clip.accumulate(loss, x, y)
    except PrivacyError as error:
        return str(error)
    return torch.cat([g.flatten().double() for total in clip.pop_sums() for g in total.grads])
