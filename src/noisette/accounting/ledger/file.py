"""The file of a ledger: locked by one process, which appends whole lines to it."""

from __future__ import annotations

import errno
import os
import stat
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from noisette._internal import atomic_files
from noisette.errors import PrivacyError

STALE = "shows a file that was replaced by a newer one, as where a single file is mounted; mount its folder instead"
_ATTEMPTS = 10
_PAUSE = 0.01  # seconds between two attempts to lock a file, which a reader may hold for a moment


class LedgerFile:
    """A file open for appending and locked against every other writer until it is closed or its process ends.

    It is created with mode 0600 where it does not exist. The lock is advisory (``flock``) and needs a POSIX system.
    Links in the path are followed once, so that later every name of the file shows the same content: ``path`` is that
    of the file itself.

    Raises:
        ValueError: the path is that of a device, a pipe or a socket.
        PrivacyError: another process, or another object of this process, has the file open.
        OSError: the file cannot be opened or locked.
    """

    def __init__(self, path: Path) -> None:
        self._owner = os.getpid()
        for _ in range(_ATTEMPTS):
            self.path = Path(os.path.realpath(path))
            if self._open():
                break
        else:
            raise PrivacyError(f"{self.path} is replaced whenever it is opened; end the process that does so")

    def _open(self) -> bool:
        """Open and lock what the path names, and return whether the path still names it then.

        If not, a writer has replaced it by a shorter file meanwhile. A link in the place of the file is not followed.
        """
        check_is_file(self.path)
        self._adopt(os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        self._watch_folder()
        try:
            _lock(self._descriptor)
            if not self._is_at_its_path():
                self.close()
                return False
            if os.fstat(self._descriptor).st_nlink == 0:
                raise PrivacyError(f"{self.path} {STALE}")
            atomic_files.clear(self.path)
        except BlockingIOError:
            self.close()
            raise PrivacyError(
                f"{self.path} is open for writing elsewhere, so its privacy cost may change; wait until that run has "
                "ended, or within one process let the runs share one Ledger. Ledger.read needs no lock"
            ) from None
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                error.filename = str(self.path)
            raise
        return True

    def _adopt(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._finalizer = weakref.finalize(self, _unlock_and_close, descriptor, self._owner)

    def _watch_folder(self) -> None:
        """Keep the folder of the file, under whatever name, to tell that the file is no longer in it by its name."""
        self._folder = os.open(self.path.parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._folder)

    def content(self) -> bytes:
        """The whole content of the file."""
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()

    def append(self, line: bytes, *, size: int, durable: bool) -> None:
        """Append a line to a file of this size, completely or not at all.

        Raises:
            PrivacyError: the file was closed, removed or changed, or belongs to the process this one was forked from.
            OSError: the line cannot be written. After a failed sync the file is closed, since it is unknown what
                reached the disk.
        """
        self._check_ours(size)
        try:
            if os.write(self._descriptor, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if durable:
                self._sync(new=size == 0)
        except BaseException as error:
            if isinstance(error, OSError):
                error.filename = str(self.path)
            if self._finalizer.alive:
                os.ftruncate(self._descriptor, size)
            raise

    def cut(self, size: int) -> None:
        """Truncate the file to this many bytes, durably.

        Raises:
            OSError: the file cannot be written.
        """
        os.ftruncate(self._descriptor, size)
        self._sync(new=False)

    def replace_end(self, lines: bytes, *, start: int, size: int) -> bool:
        """Replace all bytes after ``start`` in a file of this size by these lines, durably.

        Returns:
            Whether that was done. The file stays as it was where the disk has no room, where it was moved, and where it
            has a second name (a hard link), which would keep the old content.

        Raises:
            PrivacyError: the file was closed, removed or changed, or belongs to the process this one was forked from.
            OSError: it is unknown which of the two files a crash would leave; the file is closed.
        """
        self._check_ours(size)
        if not self._is_replaceable():
            return False
        descriptor = -1
        try:
            with atomic_files.atomic_write(self.path, mode=0o600) as beside:
                descriptor = os.open(beside, os.O_RDWR | os.O_APPEND)
                _lock(descriptor)  # before it takes the name under which other processes open it
                content = self.content()[:start] + lines
                if os.write(descriptor, content) < len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
                if not self._is_replaceable():  # again: a link may have been made while the new file was written
                    raise OSError(errno.EMLINK, os.strerror(errno.EMLINK))
        except BaseException as error:
            if descriptor >= 0:
                os.close(descriptor)
            if not self._is_at_its_path():
                self.close()
            elif isinstance(error, OSError):
                return False
            raise
        close_old = self._finalizer
        self._adopt(descriptor)
        close_old()
        return True

    def _is_at_its_path(self) -> bool:
        with suppress(OSError):
            return os.path.samestat(os.lstat(self.path), os.fstat(self._descriptor))
        return False

    def _is_replaceable(self) -> bool:
        """Whether replacing what is at the path leaves no other name for the old content."""
        return self._is_at_its_path() and os.fstat(self._descriptor).st_nlink == 1

    def close(self) -> None:
        """Unlock and close the file. Later writes are refused."""
        self._finalizer()

    def _check_ours(self, size: int) -> None:
        if not self._finalizer.alive:
            raise PrivacyError(f"{self.path} was closed and records no more releases; open it again with Ledger(path)")
        if os.getpid() != self._owner:
            raise PrivacyError(
                f"{self.path} belongs to process {self._owner}, from which this one was forked; use it there"
            )
        status = os.fstat(self._descriptor)
        if status.st_nlink == 0 or status.st_size != size:
            raise PrivacyError(
                f"{self.path} was removed or changed since it was read, by another process or by an interrupted write; "
                "open it again"
            )
        if not self._is_in_its_folder(status):
            raise PrivacyError(
                f"{self.path} was renamed or replaced since it was opened, so another run may count its steps "
                "elsewhere; move it back and open it again"
            )

    def _is_in_its_folder(self, status: os.stat_result) -> bool:
        """Whether the file still has its name, or a link of that name, in its folder; the folder may have moved."""
        with suppress(OSError):
            return os.path.samestat(os.stat(self.path.name, dir_fd=self._folder), status)
        return False

    def _sync(self, *, new: bool) -> None:
        try:
            os.fsync(self._descriptor)
            if new:  # a new file is durable only once its directory entry is
                atomic_files.sync(self.path.parent)
        except OSError:
            self.close()
            raise


def check_is_file(path: Path, *, readable: Callable[[int], bool] = stat.S_ISREG) -> None:
    """Check that what is at a path is a file, if there is anything.

    Args:
        path: of the ledger.
        readable: of a mode, whether that will do; a folder is left to the call that opens it.

    Raises:
        ValueError: it is a device, a pipe or a socket.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(path).st_mode
        if not readable(mode) and not stat.S_ISDIR(mode):
            raise ValueError(f"{path} is a device, a pipe or a socket; a ledger is kept in a file on a disk")


def _lock(descriptor: int) -> None:
    import fcntl  # only POSIX systems have it, and reading needs no lock

    for attempt in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE)
        else:
            return


def _unlock_and_close(descriptor: int, owner: int) -> None:
    import fcntl

    if os.getpid() == owner:  # forked processes share the lock, which ends with its owner
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
