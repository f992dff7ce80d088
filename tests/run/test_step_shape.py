"""A step is short enough to be read: few frames deep, in few files, with few moves and calls."""

import subprocess
import sys

import step_shape
from step_shape import StepShape

LIMIT = StepShape(deepest_chain=14, files_entered=15, moves=120, calls=500)


def test_a_step_of_an_mlp_is_short():
    # In a process of its own, because a run that another test left open has hooks on every optimizer.
    done = subprocess.run([sys.executable, step_shape.__file__], capture_output=True, text=True, check=True)
    shape: StepShape = eval(done.stdout, {"StepShape": StepShape})
    assert all(found <= most for found, most in zip(shape, LIMIT, strict=True)), shape
