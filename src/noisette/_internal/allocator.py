"""How the C library treats the memory of tensors that are gone."""

from __future__ import annotations

import ctypes
import sys

# Names and numbers of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Have freed memory kept for the next tensors instead of returned to the system; whether that was possible.

    By default large tensors are fresh pages each time they are made, and touching fresh pages takes longer than the
    arithmetic on them. The choice is the whole process's, so only a command of our own makes it. Linux with glibc only.
    """
    if not sys.platform.startswith("linux"):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is None:
        return False
    return bool(set_option(_TRIM_THRESHOLD, _LARGEST)) and bool(set_option(_MMAP_MAX, 0))
