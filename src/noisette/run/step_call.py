"""Which call of ``optimizer.step`` is under way, told by the frames of the stack.

The step of an optimizer may call that of its base class, and both call the hooks. A compiled step has hooks between
parts that torch compiles; each part runs in a frame of its own, which is called by the one before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from torch.compiler import disable

# Frames through which a hook is called: its own, and that with which torch keeps it out of what it compiles.
_PASSING = (__name__.partition(".")[0], "torch._dynamo")


def uncompiled(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that is never compiled with the optimizer's step: what it does must not be done while tracing."""
    kept_out: Any = disable(hook)
    return kept_out


class StepCall:
    """The call of ``optimizer.step`` that made the last release, and the calls of base classes within it."""

    def __init__(self) -> None:
        self._frames: list[FrameType] = []  # those that called the hook before a step, the outermost first

    def begin(self) -> None:
        """The hook before the outermost step is running."""
        self._frames = [_caller()]

    def enter(self) -> None:
        """The hook before a step within it is running."""
        self._frames.append(_caller())

    def is_running(self) -> bool:
        """Whether the outermost step is still under way, and has not ended, also not in an error."""
        return bool(self._frames) and self._frames[0] in _stack()

    def end(self) -> bool:
        """Called in the hook after a step; true, once, for the outermost step."""
        stack = _stack()
        if not self._frames or self._frames[0] not in stack or any(frame in stack for frame in self._frames[1:]):
            return False
        self._frames = []
        return True


def _stack() -> list[FrameType]:
    """The frames that are running, the innermost first."""
    frames, frame = [], sys._getframe(1)
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


def _caller() -> FrameType:
    """The frame that called the hook."""
    return next(frame for frame in _stack() if not frame.f_globals.get("__name__", "").startswith(_PASSING))
