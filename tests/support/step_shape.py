"""How one step of a private run moves through the files of noisette: ``python tests/support/step_shape.py``.

One step is the whole round of a private training loop: the batch of 128 examples is drawn, ``run.accumulate`` and
``optimizer.step`` follow, with the default engine, without capture, and with a ledger in memory. The model has two
linear layers with biases. Two steps before it are not counted.

Only functions written in files of noisette count; those of torch, numpy and the standard library, and methods that
``dataclass`` makes, do not. A frame of noisette is one of such a function, of a comprehension, or of a generator, which
is called anew for each value that it yields.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

import noisette
from small_loop import loss, start

SOURCE = str(Path(noisette.__file__).parent)
BATCH = 128


class StepShape(NamedTuple):
    """Four figures of what was called."""

    deepest_chain: int  # the largest number of noisette frames on the stack at once, without those of others
    files_entered: int
    moves: int  # how often execution passes from one noisette file to another, by a call or by a return
    calls: int


def shape_of(action: Callable[[], object]) -> StepShape:
    """Carry out an action and count the calls of noisette's functions on the way."""
    stack: list[str] = []
    files: set[str] = set()
    deepest = moves = calls = 0
    latest = ""  # the noisette file in which execution was last

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal deepest, moves, calls, latest
        file = frame.f_code.co_filename
        if not file.startswith(SOURCE):
            return
        if event == "call":
            stack.append(file)
            calls += 1
            files.add(file)
            deepest = max(deepest, len(stack))
        elif event == "return":
            stack.pop()
        if event in ("call", "return") and stack:
            moves += latest not in ("", stack[-1])
            latest = stack[-1]

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(before)
    assert not stack, "a function of noisette was called and did not return"
    return StepShape(deepest, len(files), moves, calls)


def mlp_step() -> StepShape:
    """The shape of the third step of a run."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    data = torch.randn(BATCH, 32), torch.randint(0, 10, (BATCH,))
    clip, accountant = {"max_grad_norm": 1.0, "capture": "eager"}, noisette.RdpAccountant()
    run = start(model, data, clip=clip, sampling_rate=1.0, expected_batch_size=BATCH, accountant=accountant)
    batches = run.batches()

    def step() -> None:
        for x, y in next(batches).microbatches(BATCH):
            run.accumulate(loss, x, y)
        run.optimizer.step()
        run.optimizer.zero_grad()

    return [shape_of(step) for _ in range(3)][-1]


if __name__ == "__main__":
    print(mlp_step())
