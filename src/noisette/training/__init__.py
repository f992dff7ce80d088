"""Training by a recipe: building the model, the training loop, and the report of the run."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_MAX, _LARGEST = -1, -4, 2**31 - 1  # of glibc's malloc.h


def keep_freed_memory() -> bool:
    """Keep freed memory of the whole process, whose fresh pages take longer than arithmetic; whether it is possible."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform.startswith("linux") else None
    return set_option is not None and bool(set_option(_TRIM_THRESHOLD, _LARGEST)) and bool(set_option(_MMAP_MAX, 0))
