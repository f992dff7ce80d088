"""The reaction of a run to Ctrl-C and SIGTERM: it ends between two steps, or at once when asked again."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

from noisette.cli.options import TERMINATED


class Stopping:
    """Waits for the end of a step where a signal arrives. Use it in a ``with`` block around the run.

    An exception that a signal handler raises anywhere may be lost, where Python runs code that cannot fail. Before the
    first step there is nothing to wait for, and a second signal does not wait either.
    """

    def __init__(self) -> None:
        self._asked: BaseException | None = None
        self._stepping = False

    def after_step(self) -> None:
        """End the run here if it was asked to end.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed during the step.
            SystemExit: SIGTERM arrived during the step.
        """
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
