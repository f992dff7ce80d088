"""A captured step sees changes of the plain values that an honest loop changes: none makes it go on with an older one.

What it does not see (attributes deep inside of objects, or of classes) the comparisons with the step find.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from model_cases import Forward
from noisette import PerExampleClip, PrivacyError
from small_loop import loss as cross_entropy

# Schedulers that are stepped without their optimizer.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")
SCALE = 1.0
SETTINGS: dict[str, Any] = {"scale": 1.0}
Loss = Callable[..., Tensor]
Scene = Callable[[Any, pytest.MonkeyPatch], tuple[Loss, Callable[[], object]]]


def halved(module: nn.Module, x: Tensor) -> Tensor:
    return x / 2 if module.training else x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.drop = nn.Linear(5, 6), nn.Linear(6, 4), Forward(halved)
        self.scale, self.activation = 1.0, torch.tanh
        self.register_buffer("kept", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self.activation(self.first(x))) * self.scale
        return self.last((hidden if self.training else hidden.relu()) * self.kept)


def scaled(scale: float, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return scale * cross_entropy(model, x, y)


class Trainer:
    def __init__(self) -> None:
        self.beta, self.teacher = 1.0, nn.Sequential(nn.Dropout(0.0))

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return self.beta * (0.5 if self.teacher[0].training else 1.0) * cross_entropy(model, x, y)

    loss = __call__


def trainer(change: Callable[[Trainer], object], method: str = "loss") -> Scene:
    def scene(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Callable[[], object]]:
        owner = Trainer()
        return (getattr(owner, method) if method else owner), lambda: change(owner)

    return scene


def of_model(change: Callable[[Any], object]) -> Scene:
    return lambda model, patch: (cross_entropy, lambda: change(model))


def of_global(loss: Loss, change: Callable[[pytest.MonkeyPatch], object]) -> Scene:
    return lambda model, patch: (loss, lambda: change(patch))


def cell(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Callable[[], object]]:
    scale = 1.0

    def change() -> None:
        nonlocal scale
        scale = 2.0

    return lambda model, x, y: scaled(scale, model, x, y), change


def default(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Callable[[], object]]:
    def loss(model: nn.Module, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return scaled(scale, model, x, y)

    return loss, lambda: setattr(loss, "__defaults__", (2.0,))


def rate_of_optimizer(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Callable[[], object]]:
    group = (optimizer := torch.optim.Adam(model.parameters(), lr=1.0)).param_groups[0]
    loss = lambda model, x, y: scaled(optimizer.param_groups[0]["lr"], model, x, y)  # noqa: E731
    return loss, lambda: group.update(lr=0.5)


def by_scheduler(scheduler: Any, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return scaled(scheduler.get_last_lr()[0], model, x, y)


def rate_of_scheduler(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Callable[[], object]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return partial(by_scheduler, scheduler), scheduler.step


def lists(model: Net, patch: pytest.MonkeyPatch) -> tuple[Loss, Callable[[], object]]:
    scales = [1.0]
    return lambda model, x, y: scaled(scales[0], model, x, y), lambda: scales.__setitem__(0, 2.0)


SCENES: dict[str, Scene] = {
    "an attribute of a trainer": trainer(lambda owner: setattr(owner, "beta", 2.0)),
    "an attribute of an object that is the loss": trainer(lambda owner: setattr(owner, "beta", 2.0), ""),
    "the mode of a part of another model": trainer(lambda owner: owner.teacher.eval()),
    "a rate of an optimizer in a closure": rate_of_optimizer,
    "a scheduler in a partial": rate_of_scheduler,
    "a cell": cell,
    "a default": default,
    "an element of a list": lists,
    "a global name of the loss": of_global(
        lambda model, x, y: scaled(SCALE, model, x, y), lambda patch: patch.setattr(sys.modules[__name__], "SCALE", 2.0)
    ),
    "an entry of a global dictionary": of_global(
        lambda model, x, y: scaled(SETTINGS["scale"], model, x, y), lambda patch: patch.setitem(SETTINGS, "scale", 2.0)
    ),
    "another loss": lambda model, patch: (cross_entropy, lambda: lambda model, x, y: model(x).square().sum()),
    "an argument of a partial": lambda model, patch: (partial(scaled, 1.0), lambda: partial(scaled, 2.0)),
    "the mode of a part": of_model(lambda model: model.first.eval() and model.drop.eval()),
    "the mode of the model": of_model(lambda model: model.eval()),
    "an attribute of the model": of_model(lambda model: setattr(model, "scale", 2.0)),
    "a function of torch": of_model(lambda model: setattr(model, "activation", torch.sin)),
    "a buffer, written": of_model(lambda model: model.kept.mul_(2.0)),
    "a buffer, replaced": of_model(lambda model: setattr(model, "kept", 2 * model.kept)),
    "loaded weights": of_model(lambda model: model.load_state_dict({k: 2 * v for k, v in model.state_dict().items()})),
    "weights in new memory": of_model(lambda model: setattr(model.first.weight, "data", 2 * model.first.weight.data)),
    "a replaced parameter that is not trained": of_model(
        lambda model: setattr(model.first, "weight", nn.Parameter(2 * model.first.weight.detach()))
    ),
    "a frozen part": of_model(lambda model: model.first.requires_grad_(False) and None),
    "a hook": of_model(lambda model: model.first.register_forward_hook(lambda module, args, output: 2 * output)),
    "a part": of_model(lambda model: setattr(model, "first", nn.Sequential(model.first, nn.ReLU()))),
}


@pytest.mark.parametrize("name", SCENES)
def test_a_change_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call after the change is the sixth of the graph, which is not compared with the step itself."""
    model = Net().double()
    loss, change = SCENES[name](model, monkeypatch)
    captured, eager = PerExampleClip(model, 1e3, capture="graph"), PerExampleClip(model, 1e3, capture="eager")
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randint(0, 4, (6,))
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
    try:
        clip.accumulate(loss, x, y)
    except PrivacyError as error:
        return str(error)
    return torch.cat([g.flatten().double() for total in clip.pop_sums() for g in total.grads])
