"""Atomic writes: after a crash, also of the machine, a file is complete or absent."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_write(path: Path, *, mode: int = 0o666) -> Iterator[Path]:
    """A new file to write to, which replaces ``path`` at the end of the block, once it is on the disk.

    An older file stays until then, and for good if the block fails. ``mode`` is before the umask; errors name the path.
    """
    beside = _beside(path)
    try:
        beside.unlink(missing_ok=True)
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        yield beside
        sync(beside)
        os.replace(beside, path)
        sync(path.parent)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error  # a write error does not name the file
        raise


def write(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write a whole file durably, in place of an older one, as :func:`atomic_write`."""
    with atomic_write(path, mode=mode) as beside:
        beside.write_bytes(content)


def clear(path: Path) -> None:
    """Delete an unfinished new file for ``path`` that a crash left, if possible."""
    with suppress(OSError):
        _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.unfinished")


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
