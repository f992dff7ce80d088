"""Every tensor of the process is listed, whatever the garbage collector has been told to leave alone."""

import gc
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from noisette.gradients.existing_tensors import existing_tensors


class Labelled(Tensor):
    """A tensor of a class of the user's."""


@pytest.fixture(autouse=True)
def _hidden_at_the_end() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.freeze()


def listed(tensor: Tensor) -> int:
    return sum(found is tensor for found in existing_tensors())


@pytest.mark.parametrize("tensor", [torch.zeros(3), nn.Parameter(torch.zeros(3)), torch.zeros(3).as_subclass(Labelled)])
def test_a_tensor_is_listed_once(tensor: Tensor) -> None:
    assert listed(tensor) == 1


def test_tensors_that_are_hidden_are_listed_and_stay_hidden() -> None:
    tensor = torch.zeros(3)
    gc.freeze()
    assert listed(tensor) == 1
    assert not any(found is tensor for found in gc.get_objects())


def test_tensors_that_are_hidden_later_are_listed() -> None:
    first = torch.zeros(3)
    gc.freeze()
    assert listed(first) == 1
    second = torch.zeros(3)
    assert listed(second) == 1
    gc.freeze()
    assert (listed(first), listed(second)) == (1, 1)


def test_tensors_that_are_shown_and_hidden_again_are_listed() -> None:
    first = torch.zeros(3)
    gc.freeze()
    assert listed(first) == 1
    gc.unfreeze()
    second = torch.zeros(3)
    assert (listed(first), listed(second)) == (1, 1)
    gc.freeze()
    assert (listed(first), listed(second)) == (1, 1)


def test_hidden_tensors_are_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.freeze()
    existing_tensors()
    monkeypatch.setattr(gc, "unfreeze", lambda: pytest.fail("looked for again"))
    tensor = torch.zeros(3)
    assert listed(tensor) == 1


def test_a_parameter_without_a_shape_is_not_listed() -> None:
    layer = nn.LazyLinear(3)
    assert listed(layer.weight) == 0
