"""System calls that fail."""

import os
from typing import Any


class FailingCall:
    """A call of ``os`` that fails from a given use on, or at that use alone, before its work or after it."""

    def __init__(self, name: str, at: int, error: BaseException, *, once: bool = False, after: bool = False) -> None:
        self.call, self.left, self.error, self.once, self.after = getattr(os, name), at, error, once, after

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0 and (self.left == -1 or not self.once):
            if self.after:
                self.call(*arguments, **options)
            raise self.error
        return self.call(*arguments, **options)
