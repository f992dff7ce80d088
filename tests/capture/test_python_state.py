"""What a call of a loss may read in Python, compared from call to call."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor, nn

from noisette.capture.python_state import PythonState


class Holds(nn.Module):
    def __init__(self, objects: np.ndarray) -> None:
        super().__init__()
        self.objects = objects

    def forward(self, x: Tensor) -> Tensor:
        return x * self.objects[0][0]


def of_objects(size: int) -> np.ndarray:
    objects = np.empty(size, dtype=object)
    objects[:] = [[float(k)] for k in range(size)]
    return objects


@pytest.mark.parametrize("size", [2, 5000])
@pytest.mark.parametrize("is_held", [False, True], ids=["reached by the loss", "held by the model"])
def test_an_array_of_objects_is_the_same_until_an_entry_is_exchanged(size: int, is_held: bool) -> None:
    objects = of_objects(size)
    state = PythonState(Holds(objects if is_held else of_objects(1)))

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x) * objects[0][0]

    reached = () if is_held else (loss,)
    before = state.of(*reached)
    assert state.of(*reached) == before
    objects[0] = [0.0, 1.0]
    exchanged = state.of(*reached)
    assert exchanged != before
    assert state.of(*reached) == exchanged
    if size == 2:  # into larger ones nothing looks
        objects[0].append(2.0)
        assert state.of(*reached) != exchanged
