"""Reading a ledger without a lock, also while a process writes to it."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path

from noisette.accounting.ledger.file import STALE, check_is_file

_ATTEMPTS = 20
_PAUSE = 0.01  # seconds between two attempts to read a file that is being written


def contents(path: Path) -> Iterator[bytes]:
    """What a file holds, read again for as long as a process writes to it; the first that is a ledger is the right one.

    The first is the whole content. Beside a writer it may end within a line, or hold the beginning of a line that could
    not be written and was taken back. So the next ones hold whole lines only. Where nobody writes there is one more,
    which no writer can have disturbed.

    Raises:
        ValueError: the path is that of a device or a socket, or of a file that was replaced by a newer one.
        OSError: the file cannot be read.
    """
    check_is_file(path, readable=lambda mode: stat.S_ISREG(mode) or stat.S_ISFIFO(mode))
    with path.open("rb") as file:
        yield _current(file, path)
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            return
    for _ in range(_ATTEMPTS):
        with path.open("rb") as file:
            if not _is_written(file):
                yield _current(file, path)
                return
            content = _current(file, path)
            yield content[: content.rfind(b"\n") + 1]
        time.sleep(_PAUSE)


def _current(file: BufferedReader, path: Path) -> bytes:
    """The content of an open file, unless the path no longer shows the file that is written."""
    content, status = file.read(), os.fstat(file.fileno())
    if status.st_nlink == 0 and stat.S_ISREG(status.st_mode) and os.path.samestat(status, path.stat()):
        raise ValueError(f"{path} {STALE}")
    return content


def _is_written(file: BufferedReader) -> bool:
    """Whether a process has the file locked for writing. If not, none can lock it before the file is closed."""
    try:
        import fcntl
    except ImportError:  # no process can write to a ledger on this system
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    return False
