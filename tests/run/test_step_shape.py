"""A step is short enough to be read: few frames deep, in few files, with few moves from file to file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import step_shape
from step_shape import SOURCE, StepShape, shape_of

# Deepest chain, files entered and moves, with what guards and times captured steps. The recorder of a vectorised loss
# is called for each torch call of the user, and half of the moves of ``accumulate`` are these calls. Each use is asked
# for its arguments, which a checkpointed block makes anew, and the forward pass is prepared for being repeated. The
# reservation asks the release for the length of its round, and the ledger's counts have a file of their own. The seal
# seeds generators secretly, asks before each microbatch whether somebody else has, and holds the noise on weights.
# What the tape has recorded and the gradients of the last release have files of their own.
LIMITS = {"accumulate": StepShape(20, 54, 550), "backward": StepShape(15, 39, 258)}


@pytest.mark.parametrize("way", LIMITS)
def test_a_step_of_an_mlp_is_short(way: str) -> None:
    # In a process of its own, because a run that another test left open has hooks on every optimizer.
    done = subprocess.run([sys.executable, step_shape.__file__, way], capture_output=True, text=True, check=True)
    shape = eval(done.stdout, {"StepShape": StepShape})
    assert shape.deepest_chain <= LIMITS[way].deepest_chain
    assert shape.files_entered <= LIMITS[way].files_entered
    assert shape.moves <= LIMITS[way].moves


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
    assert shape_of(lambda: Path("a").with_name("b")) == StepShape(0, 0, 0)
    assert shape_of(planted["two"]) == StepShape(2, 1, 0)
    assert shape_of(planted["across"]) == StepShape(4, 2, 4), "there and back, twice"
    assert shape_of(lambda: [planted["across"](), planted["two"](), planted["three"]()]) == StepShape(4, 2, 7)
    assert shape_of(lambda: [planted["one"](), list(planted["values"]())]) == StepShape(1, 2, 1)


def test_a_function_that_fails_leaves_the_stack(planted: dict[str, Any]) -> None:
    def refused() -> None:
        with pytest.raises(ValueError):
            planted["fails"]()
        planted["two"]()

    assert shape_of(refused) == StepShape(2, 2, 2)
