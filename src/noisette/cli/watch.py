"""What stands between a run and the person before the screen: a progress bar one way, Ctrl-C the other."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noisette.report import percent, upward

if TYPE_CHECKING:
    from noisette.private_run import PrivateRun
    from noisette.training import Point


class Watch:
    """Shows how a run gets on, and lets Ctrl-C wait for the end of the step at hand; a second Ctrl-C does not wait.

    Before the first step there is nothing to finish, and Ctrl-C does what it always does.

    Args:
        title: what the bar says on its left.
    """

    def __init__(self, title: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[status]}"),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._progress.add_task(title, total=None, status="finding the noise")
        self._asked_to_stop = False

    def on_step(self, run: PrivateRun, point: Point) -> None:
        """A step is done.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed meanwhile.
        """
        accuracy = "" if point.test_accuracy is None else f"  test {percent(point.test_accuracy)}"
        self._progress.update(
            self._task,
            total=run.steps,
            completed=point.step,
            status=f"epsilon {upward(point.epsilon)}{accuracy}",
        )
        if self._asked_to_stop:
            raise KeyboardInterrupt
        if self._interrupt_before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_interrupt)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._asked_to_stop:
            raise KeyboardInterrupt
        self._asked_to_stop = True

    def __enter__(self) -> Self:
        self._interrupt_before = signal.getsignal(signal.SIGINT)
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()
        signal.signal(signal.SIGINT, self._interrupt_before)
