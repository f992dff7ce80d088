"""The progress bar of a run, and its reaction to Ctrl-C and SIGTERM."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noisette.cli.options import TERMINATED

if TYPE_CHECKING:
    from noisette.run.private import PrivateRun
    from noisette.training.report.facts import Point

_COMPILER = logging.getLogger("noisette.capture")


class Stopping:
    """Waits for the end of a step where a signal arrives. Use it in a ``with`` block around the run.

    An exception that a signal handler raises anywhere may be lost, where Python runs code that cannot fail. Before the
    first step there is nothing to wait for, and a second signal does not wait either. SIGTERM raises ``SystemExit``.
    On either a run saves a checkpoint first, if it took a step.
    """

    def __init__(self) -> None:
        self._asked: BaseException | None = None
        self._stepping = False

    def after_step(self) -> None:
        """End the run by ``KeyboardInterrupt`` or ``SystemExit`` if Ctrl-C or SIGTERM has asked for it."""
        if self._asked:
            raise self._asked
        self._stepping = True

    def _stop(self, number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(TERMINATED)
        if self._asked or not self._stepping:
            raise error
        self._asked = error

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        for number, before in self._before.items():
            if before is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._stop)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class _Messages(logging.Handler):
    """Shows what is being compiled, for which a step may wait."""

    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__(logging.INFO)
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        self._show(record.getMessage())


class Watch(Stopping):
    """Shows the progress of a run, which signals end as in :class:`Stopping`."""

    def __init__(self, title: str, *, shown: bool = True) -> None:
        super().__init__()
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
        self._task = self._progress.add_task(title, total=None, status="calibrating the noise")
        self._compiler = _Messages(lambda said: self._progress.update(self._task, status=said))

    def on_step(self, run: PrivateRun, point: Point) -> None:
        """Show the state after a step, and end the run as :meth:`after_step` does."""
        import torch

        from noisette.training.report.facts import percent, upward

        accuracy = "" if point.test_accuracy is None else f"  test {percent(point.test_accuracy)}"
        threads = torch.get_num_threads()  # with which the steps are computed, for a model on a processor
        cost = f"epsilon {upward(point.epsilon)}" if point.epsilon < math.inf else "NOT PRIVATE"
        status = f"{cost}{accuracy}  {threads} thread{'s' * (threads > 1)}"
        self._progress.update(self._task, total=run.steps, completed=point.step, status=status)
        self.after_step()

    def __enter__(self) -> Self:
        self._progress.start()
        _COMPILER.addHandler(self._compiler)
        _COMPILER.setLevel(logging.INFO)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
        _COMPILER.removeHandler(self._compiler)
        super().__exit__()
