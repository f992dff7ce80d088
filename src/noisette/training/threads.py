"""How many threads a step of training takes: one or all, whichever a short measurement finds quicker.

Threads of a small operation wait for each other longer than they work, and far longer where other programs use the
cores as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor, nn

from noisette.nn.batch_norm import in_evaluation

_SET_BY = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_AT_IMPORT = torch.get_num_threads()
_SECONDS, _FEWEST_ROUNDS, _MOST_ROUNDS = 0.5, 3, 9  # of the measurement
_SHORT = 0.04  # seconds of a step that is long enough to be measured
_HOPELESS = 3.0  # times as long as with one thread: the cores are taken, and measuring on would take long
_GAIN = 0.9  # all threads are taken where their time is at most this share of one thread's

Loss = Callable[[Tensor, Tensor], Tensor]  # of scores and targets, one value for each example


def choose_threads(model: nn.Module, loss: Loss, inputs: Tensor, targets: Tensor, examples: int) -> int:
    """Let torch compute with one thread or with all, and return the number.

    Steps of at most so many examples, all zeros, are measured: no record plays a part. Nothing changes where the user
    has set a number, or where the model is on a GPU; weights, buffers and modes stay as they are.
    """
    everything = torch.get_num_threads()
    if set_by_user(os.environ, everything, _AT_IMPORT) or inputs.device.type != "cpu":
        return everything
    weights = [p for p in model.parameters() if p.requires_grad]

    def step(count: int) -> None:
        x, y = inputs.new_zeros((count, *inputs.shape[1:])), targets.new_zeros((count, *targets.shape[1:]))
        torch.autograd.grad(loss(model(x), y).sum(), weights, allow_unused=True)

    with torch.random.fork_rng(devices=[]), in_evaluation(model), torch.enable_grad():
        count = measured_size(examples, lambda n: _timed(1, lambda: step(n)))
        chosen = quickest((1, everything), lambda threads: _timed(threads, lambda: step(count)))
    torch.set_num_threads(chosen)
    return chosen


def measured_size(examples: int, seconds: Callable[[int], float]) -> int:
    """The number of examples to measure with: doubled from one on while a step is short, and at most ``examples``.

    >>> measured_size(1000, lambda n: n / 1000)
    64
    """
    count = 1
    seconds(count)  # the first step makes the plans of the operations
    while count < examples and seconds(count) < _SHORT:
        count = min(2 * count, examples)
    return count


def set_by_user(environment: Mapping[str, str], now: int, at_import: int) -> bool:
    """Whether a number of threads was chosen already, or there is only one to choose.

    >>> set_by_user({}, 8, 8), set_by_user({"OMP_NUM_THREADS": "8"}, 8, 8), set_by_user({}, 2, 8), set_by_user({}, 1, 1)
    (False, True, True, True)
    """
    return now == 1 or now != at_import or any(environment.get(name) for name in _SET_BY)


def quickest(candidates: tuple[int, int], seconds: Callable[[int], float]) -> int:
    """The second number of threads if a step has a clearly smaller median time with it, else the first."""
    few, many = candidates
    started = seconds(many)  # the first step with all threads starts them
    times: dict[int, list[float]] = {few: [seconds(few)], many: []}
    if started > _HOPELESS * times[few][0]:
        return few
    while len(times[many]) < _FEWEST_ROUNDS or (
        len(times[many]) < _MOST_ROUNDS and sum(map(sum, times.values())) < _SECONDS
    ):
        for threads in candidates:
            times[threads].append(seconds(threads))
    return many if median(times[many]) <= _GAIN * median(times[few]) else few


def _timed(threads: int, step: Callable[[], None]) -> float:
    torch.set_num_threads(threads)
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
