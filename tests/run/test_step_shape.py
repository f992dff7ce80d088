"""A step is short enough to be read: few frames deep, in few files, with few moves and calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import step_shape
from step_shape import SOURCE, StepShape, shape_of

LIMIT = StepShape(deepest_chain=13, files_entered=15, moves=120, calls=495)


def test_a_step_of_an_mlp_is_short() -> None:
    # In a process of its own, because a run that another test left open has hooks on every optimizer.
    done = subprocess.run([sys.executable, step_shape.__file__], capture_output=True, text=True, check=True)
    shape: StepShape = eval(done.stdout, {"StepShape": StepShape})
    assert shape.deepest_chain <= LIMIT.deepest_chain
    assert shape.files_entered <= LIMIT.files_entered
    assert shape.moves <= LIMIT.moves
    assert shape.calls <= LIMIT.calls


PLANTED = {
    "a.py": "def one(): pass\ndef two(): one()\ndef across(): three()\ndef fails(): raises()",
    "b.py": "def three(): two()\ndef raises(): raise ValueError\ndef values(): yield 1; yield 2",
}


@pytest.fixture
def planted() -> dict[str, Any]:
    """Functions of two files that lie, by their code, inside the package."""
    functions: dict[str, Any] = {}
    for name, text in PLANTED.items():
        exec(compile(text, f"{SOURCE}/{name}", "exec"), functions)
    return functions


def test_calls_of_noisette_are_counted_and_no_others(planted: dict[str, Any]) -> None:
    assert shape_of(lambda: Path("a").with_name("b")) == StepShape(0, 0, 0, 0)
    assert shape_of(planted["two"]) == StepShape(2, 1, 0, 2)
    assert shape_of(planted["across"]) == StepShape(4, 2, 4, 4), "there and back, twice"
    assert shape_of(lambda: [planted["across"](), planted["two"](), planted["three"]()]) == StepShape(4, 2, 7, 9)
    assert shape_of(lambda: [planted["one"](), list(planted["values"]())]) == StepShape(1, 2, 1, 4)


def test_a_function_that_fails_leaves_the_stack(planted: dict[str, Any]) -> None:
    def refused() -> None:
        with pytest.raises(ValueError):
            planted["fails"]()
        planted["two"]()

    assert shape_of(refused) == StepShape(2, 2, 2, 4)
