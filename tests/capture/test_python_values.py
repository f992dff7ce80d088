"""Values that a graph depends on: equal while nothing changes, others after a change, and nothing of objects runs."""

import operator
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette.capture.captured import python_values
from small_loop import loss


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 4))


def raises(*_: object) -> Any:
    raise RuntimeError("nobody may look, compare, hash, count or print")


class Fails:
    """Raises whatever is asked of it, as lazy proxies do whose target is not there yet."""

    __getattribute__ = __eq__ = __hash__ = __len__ = __repr__ = raises


class HidesItsAttributes(Fails):
    __dict__ = property(raises)  # pyright: ignore


class Mode(Enum):
    FIRST = 1
    SECOND = 2


@pytest.mark.parametrize("kind", [Fails, HidesItsAttributes])
def test_objects_that_raise_when_looked_at_are_left_alone(kind: type) -> None:
    model = mlp()
    vars(model)["odd"] = kind()
    odd = kind()

    def reads(model: nn.Module, x: Tensor, scale: object = odd) -> Tensor:
        return model(x) * odd.scale

    before = python_values(model, [reads, odd, partial(reads, odd), [odd], {"odd": odd}])
    assert before == python_values(model, [reads, odd, partial(reads, odd), [odd], {"odd": odd}])
    hash(before)


CHANGES: dict[str, Callable[[Any], object]] = {
    "a number": lambda model: setattr(model[2], "p", 0.2),
    "a text": lambda model: setattr(model, "how", "otherwise"),
    "an enum": lambda model: setattr(model, "mode", Mode.SECOND),
    "a tuple": lambda model: setattr(model, "pair", (1, 3)),
    "an entry of a list": lambda model: operator.setitem(model.sizes, 1, 3),
    "an entry of a dictionary": lambda model: model.texts.update(b="other"),
    "a type": lambda model: setattr(model, "dtype", torch.float64),
    "a function": lambda model: setattr(model, "activation", nn.functional.relu),
    "another precision": lambda model: model.double(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_the_model_is_seen(name: str) -> None:
    model = mlp()
    vars(model).update(sizes=[1, 2, model[0].weight], texts={"a": "one", "b": "two"})
    vars(model).update(how="so", mode=Mode.FIRST, pair=(1, 2), dtype=torch.float32, activation=nn.functional.gelu)
    before = python_values(model, [loss])
    assert before == python_values(model, [loss])
    CHANGES[name](model)
    assert before != python_values(model, [loss])


def test_weights_and_functions_made_anew_are_no_change() -> None:
    model = mlp()

    def made(scale: float) -> Any:
        return lambda model, x, y: scale * loss(model, x, y)

    before = python_values(model, [made(1.0)])
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)
    assert before == python_values(model, [made(1.0)])
    assert before != python_values(model, [made(2.0)])


def test_an_optimizer_inside_of_another_one_is_read() -> None:
    class Wrapping(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.optimizer = inner

    inner = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    outer = Wrapping(inner)

    def reads(model: nn.Module, x: Tensor) -> Tensor:
        return outer.param_groups[0]["lr"] * model(x)

    model = mlp()
    before = python_values(model, [reads])
    inner.param_groups[0]["lr"] = 0.5
    assert before != python_values(model, [reads])
