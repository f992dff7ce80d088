"""How many threads a step of training takes: one or all, whichever a short measurement finds quicker.

Threads of a small operation wait for each other longer than they work, and far longer where other programs use the
cores as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from noisette.nn.batch_norm import in_evaluation

_SET_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_AT_IMPORT = torch.get_num_threads()
_ROUNDS = 5
_SHORT = 0.04  # seconds of a step that is long enough to be measured
_GAIN = 0.9  # all threads are taken where their time is at most this share of one thread's

Loss = Callable[[Tensor, Tensor], Tensor]  # of scores and targets, one value for each example


def choose_threads(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, examples: int) -> int:
    """Let torch compute with one thread or with all, and return the number.

    Steps of at most so many examples, all zeros, are measured: no record plays a part. Nothing changes where the user
    has set a number, or where the model is on a GPU; weights, buffers and modes stay as they are.
    """
    everything = torch.get_num_threads()
    chosen_before = everything != _AT_IMPORT or any(os.environ.get(name) for name in _SET_BY)
    if everything == 1 or chosen_before or inputs.device.type != "cpu":
        return everything
    weights = [p for p in model.parameters() if p.requires_grad]

    def seconds(threads: int, count: int) -> float:
        x, y = inputs.new_zeros((count, *inputs.shape[1:])), targets.new_zeros((count, *targets.shape[1:]))
        return _timed(threads, lambda: torch.autograd.grad(loss(model(x), y).sum(), weights, allow_unused=True))

    with torch.random.fork_rng(devices=[]), in_evaluation(model), torch.enable_grad():
        count = 1
        seconds(1, count)  # the first step makes the plans of the operations
        while count < examples and seconds(1, count) < _SHORT:
            count = min(2 * count, examples)
        chosen = quickest(everything, lambda threads: seconds(threads, count))
    torch.set_num_threads(chosen)
    return chosen


def quickest(everything: int, seconds: Callable[[int], float]) -> int:
    """All threads if their shortest step is clearly shorter than that of one, else one.

    >>> quickest(8, {1: 0.1, 8: 0.05}.__getitem__), quickest(8, {1: 0.1, 8: 0.095}.__getitem__)
    (8, 1)
    """
    alone = min(seconds(1) for _ in range(_ROUNDS))
    seconds(everything)  # the first step with all threads starts them
    return everything if any(seconds(everything) <= _GAIN * alone for _ in range(_ROUNDS)) else 1


def _timed(threads: int, step: Callable[[], object]) -> float:
    torch.set_num_threads(threads)
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
