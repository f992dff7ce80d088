"""The progress bar of a run, and its reaction to Ctrl-C and SIGTERM."""

from __future__ import annotations

import logging
import math
import signal
from types import FrameType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noisette.cli.options import TERMINATED

if TYPE_CHECKING:
    from noisette.run.private import PrivateRun
    from noisette.training.report.facts import Point

_COMPILER = logging.getLogger("noisette.capture")


class Watch:
    """Shows the progress of a run, and waits for the end of a step where a signal arrives. Use it in a ``with`` block.

    An exception that a signal handler raises anywhere may be lost, where Python runs code that cannot fail. Before the
    first step there is nothing to wait for, and a second signal does not wait either. SIGTERM raises ``SystemExit``.
    On either a run saves a checkpoint first, if it took a step.
    """

    def __init__(self, title: str, *, shown: bool = True) -> None:
        self._asked: BaseException | None = None
        self._stepping = False
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
            transient=True,
            disable=not shown,
        )
        self._task = self._progress.add_task(title, total=None, status="preparing")
        self._compiler = logging.Handler(logging.INFO)  # of messages on what is compiled, for which a step may wait
        self._compiler.emit = lambda record: self._progress.update(self._task, status=record.getMessage())

    def on_step(self, run: PrivateRun, point: Point) -> None:
        """Show the state after a step, and end the run as :meth:`show` does."""
        import torch

        from noisette.training.report.facts import percent, upward

        accuracy = "" if point.test_accuracy is None else f"  test {percent(point.test_accuracy)}"
        threads = torch.get_num_threads()  # with which the steps are computed, for a model on a processor
        cost = f"epsilon {upward(point.epsilon)}" if point.epsilon < math.inf else "NOT PRIVATE"
        self.show(point.step, run.steps, f"{cost}{accuracy}  {threads} thread{'s' * (threads > 1)}")

    def show(self, done: int, steps: int, status: str) -> None:
        """Show a step, and end the run by ``KeyboardInterrupt`` or ``SystemExit`` if Ctrl-C or SIGTERM asked for it."""
        self._progress.update(self._task, total=steps, completed=done, status=status)
        if self._asked:
            raise self._asked
        self._stepping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(TERMINATED)
        if self._asked or not self._stepping:
            raise error
        self._asked = error

    def __enter__(self) -> Self:
        self._progress.start()
        _COMPILER.addHandler(self._compiler)
        _COMPILER.setLevel(logging.INFO)
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        _COMPILER.removeHandler(self._compiler)
        for number, handler in self._before.items():
            signal.signal(number, handler)
