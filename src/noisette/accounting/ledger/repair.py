"""Repairing a ledger whose last line was cut off."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from noisette.accounting.ledger.file import LedgerFile
from noisette.accounting.ledger.lines import repaired


def repair(path: Path | str) -> bool:
    """Drop a last line that a crash cut off; return whether there was one. No other damage is repaired.

    Zero bytes that a power failure left at the end are dropped with it.

    Guarantee: the privacy cost does not decrease. Releases that were to be recorded by a line which did not reach
    the disk completely never happened.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line was altered, or lines are missing; the file stays as it is.
        PrivacyError: the file is open for writing elsewhere.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    file = LedgerFile(path)
    try:
        content = file.content()
        left = repaired(content, path)
        kept = len(left) if content.startswith(left) else len(left) - 1  # of a whole line the newline is added
        if kept < len(content):
            file.cut(kept)  # in place: this works on a full disk, and keeps the lock
        if kept < len(left):
            file.append(left[kept:], size=kept, durable=True)
    finally:
        file.close()
    return left != content
