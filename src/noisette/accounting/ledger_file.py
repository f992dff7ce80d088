"""The ledger's file: its lines, how they are read, added, shortened and repaired."""

import errno
import hashlib
import json
import os
import secrets
import shlex
import stat
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple, Self

from noisette.accounting import atomic_files
from noisette.accounting.events import Event, event_of, facts_of, in_whole_rounds
from noisette.errors import PrivacyError, count

VERSION = 2  # of the lines; a later one has facts of which this version of noisette knows nothing
_LONGEST_LINE = 4096  # bytes; a line has some 500
_ATTEMPTS, _READ_ATTEMPTS = 10, 20
_PAUSE = 0.01  # seconds between two attempts to lock a file that is read, or to read one that is written


class Kind(Enum):
    """What a line of the ledger records about its steps."""

    RESERVE = "reserve"
    COMMIT = "commit"
    RELEASE = "release"
    CHARGE = "charge"


class End(NamedTuple):
    """The end of a ledger: its number of lines, its size in bytes, and the digest of its last line, which seals all."""

    lines: int = 0
    size: int = 0
    head: str = ""


class Series(NamedTuple):
    """The releases of one event by one run: what the commits and returned steps of a run are checked against."""

    event: Event
    run: str = ""  # the random id of the run; older lines lack it
    dimensions: int | None = None  # elements with noise, which older lines state; they count for nothing
    planned: int | None = None  # the steps that the run was declared with, if it is one of steps
    declaration: str = ""  # the name of what was declared together with this run, if anything was


_NO_ENTRY = (ArithmeticError, KeyError, RecursionError, TypeError, ValueError)  # where a line holds none
_NAMED = ("version", "run_id", "dimensions", "planned", "declaration")  # in a line, where they are known


@dataclass(frozen=True)
class Entry:
    """The content of one line. Its random mark distinguishes two ledgers with otherwise equal lines."""

    kind: Kind
    dataset: str
    series: Series
    steps: int
    mark: str = field(default="", compare=False)  # drawn when the line is written
    version: int | None = field(default=VERSION, compare=False)  # None in lines from before there were versions

    def line(self, after: End) -> tuple[bytes, End]:
        facts = _facts(self.kind, self.dataset, self.steps, self.version, self.series)
        mark = json.dumps(self.mark or secrets.token_hex(8))
        content = f'{{"sequence": {after.lines}, {facts}, "mark": {mark}, "previous": "{after.head}"}}'
        digest = hashlib.sha256(content.encode()).hexdigest()
        line = f'{content[:-1]}, "digest": "{digest}"}}\n'.encode()
        return line, End(after.lines + 1, after.size + len(line), digest)

    @classmethod
    def parse(cls, line: bytes) -> Self:
        """The entry in a line, or one of ``_NO_ENTRY``."""
        facts = json.loads(line)
        version = dict(facts).get("version")
        count(steps=facts["steps"], dimensions=facts.get("dimensions", 1), planned=facts.get("planned", 1))
        _, run, dimensions, planned, declaration = map(facts.get, _NAMED)
        series = Series(event_of(facts), str(run or ""), dimensions, planned, str(declaration or ""))
        if version not in (None, VERSION):
            raise ValueError(f"the line has the version {version!r}")
        if (kind := Kind(facts["kind"])) is not Kind.COMMIT:
            check_whole_rounds(series.event, facts["steps"])
        return cls(kind, str(facts["dataset"]), series, facts["steps"], str(facts["mark"]), version)


@lru_cache(maxsize=64)  # a step writes a line, and those of one run are alike
def _facts(kind: Kind, dataset: str, steps: int, version: int | None, series: Series) -> str:
    """The part of a line that is the same for each such entry; older lines lack some of it."""
    named = dict(zip(_NAMED, (version, *series[1:]), strict=True))
    facts = {
        **{"kind": kind.value, "dataset": dataset, "steps": steps},
        **{name: value for name, value in named.items() if value not in ("", None)},
        **facts_of(series.event),
    }
    return json.dumps(facts)[1:-1]


def check_whole_rounds(event: Event, steps: int) -> None:
    """Check that steps with correlated noise are whole rounds: two begun ones are not one, so they would not add up."""
    if steps % event.round_length:
        whole = f"{event!r} counts by whole rounds of {event.round_length} steps, got {steps} steps"
        raise ValueError(f"{whole}; record {in_whole_rounds(event, steps)}, which cost the same")


def sealed_entries(content: bytes, path: Path) -> Iterator[tuple[Entry, End]]:
    """Each entry of a ledger's content, with the end after it; a ``ValueError`` names the first line that is none."""
    end, written = End(), _written(content, path)
    while end.size < len(written):
        if (found := _entry_after(end, written)) is None:
            raise _problem(end, written, path)
        yield found
        end = found[1]
    if zeros := len(content) - len(written):
        raise _cut_off(end, path, f"the file ends in {zeros:,} zero bytes, as after a power failure")


def repaired(content: bytes, path: Path) -> bytes:
    """The content without a last line that was cut off; a last line that lacks only its newline gets it.

    Zero bytes at the end are dropped first: after a power failure a file may have its new size and not yet its bytes.
    Guarantee: the privacy cost does not decrease. A reservation or a charge that was cut off had not reached the disk,
    so the releases that waited for it never happened; a commit does not change the cost; steps whose return was cut
    off stay counted. Other damage is a ``ValueError``.
    """
    written = _written(content, path)
    whole = written[: written.rfind(b"\n") + 1]
    _, end = [(None, End()), *sealed_entries(whole, path)][-1]
    if _entry_after(end, written + b"\n"):
        return written + b"\n"
    if whole == written or _is_beginning(end, written):
        return whole
    raise _problem(end, written, path)


def _written(content: bytes, path: Path) -> bytes:
    """The content without zero bytes at its end, of which one line at most was never written.

    The first line is on the disk before anything is released; a longer file of zeros has lost lines that counted.
    """
    written = content.rstrip(b"\0")
    if not written and len(content) >= _LONGEST_LINE:
        raise _altered(End(), path)
    return written


def _entry_after(end: End, content: bytes) -> tuple[Entry, End] | None:
    """The entry of the line after this end and the new end; ``None`` where the line is not as it was written."""
    line = _line_after(end, content)
    try:
        entry = Entry.parse(line)
    except _NO_ENTRY:
        return None
    written, next_end = entry.line(end)
    return (entry, next_end) if written == line else None


def _is_beginning(end: End, content: bytes) -> bool:
    """Whether the content after this end begins a line that is not closed: a whole one may be a reservation in use."""
    rest = content[end.size :]
    start = f'{{"sequence": {end.lines}, "kind": "'.encode()
    if rest[: len(start)] != start[: len(rest)] or not rest.isascii() or not rest.decode().isprintable():
        return False
    try:
        json.JSONDecoder().raw_decode(rest.decode())
    except ValueError:
        return True
    return False


def _problem(end: End, content: bytes, path: Path) -> ValueError:
    """What is wrong with the line after this end, with the way out."""
    if _entry_after(end, content + b"\n") or _is_beginning(end, content):
        return _cut_off(end, path, "this last line was cut off, as by a crash")
    if _is_of_a_newer_version(end, content):
        newer = "this line was written by a newer version of noisette. Update noisette to read this ledger"
        return ValueError(f"{path}, line {end.lines + 1}: {newer}")
    if b'"digest": "' not in content:
        return ValueError(f"{path} is not a ledger; give the folder of a run, or the {LEDGER_FILE} in it")
    return _altered(end, path)


def _line_after(end: End, content: bytes) -> bytes:
    return content[end.size : content.find(b"\n", end.size) + 1]


def _is_of_a_newer_version(end: End, content: bytes) -> bool:
    """Whether the line after this end is sealed by its digest and has a version above that of this code."""
    sealed, _, rest = _line_after(end, content).rpartition(b', "digest": "')
    if rest != hashlib.sha256(sealed + b"}").hexdigest().encode() + b'"}\n':
        return False
    version = json.loads(sealed + b"}").get("version")
    return isinstance(version, int) and version > VERSION


def _cut_off(end: End, path: Path, fact: str) -> ValueError:
    way_out = f"repair the file with: noisette ledger repair {shlex.quote(str(path.absolute()))}"
    return ValueError(f"{path}, line {end.lines + 1}: {fact}. Nothing was released on its account; {way_out}")


def _altered(end: End, path: Path) -> ValueError:
    return ValueError(
        f"{path}, line {end.lines + 1}: this line was altered, or lines before it are missing. The privacy cost cannot "
        "be computed from this file; restore it from a copy"
    )


LEDGER_FILE = "ledger.jsonl"  # in a run folder
STALE = "shows a file that was replaced by a newer one, as where a single file is mounted; mount its folder instead"


class LedgerFile:
    """A file open for appending and locked (by ``flock``) against other writers until it is closed or its process ends.

    It is created with mode 0600 where it does not exist. Links in the path are followed once, so that later every name
    of the file shows the same content: ``path`` is that of the file itself. Errors are those of :class:`Ledger`.
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
        """Whether what the path names was opened and locked; if not, a writer has replaced it meanwhile."""
        check_is_file(self.path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._adopt(os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        # The folder, under whatever name, tells that the file is no longer in it by its name.
        self._folder = os.open(self.path.parent, getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY)
        self._close_folder = weakref.finalize(self, os.close, self._folder)
        try:
            _lock(self._descriptor)
            if not self._is_at_its_path():
                self.close()
                return False
            if os.fstat(self._descriptor).st_nlink == 0:
                raise PrivacyError(f"{self.path} {STALE}")
            atomic_files.clear(self.path)
        except BaseException as error:
            self.close()
            if isinstance(error, BlockingIOError):
                raise PrivacyError(
                    f"{self.path} is open for writing elsewhere, so its privacy cost may change; wait until that run "
                    "has ended, or within one process let the runs share one Ledger. Ledger.read needs no lock"
                ) from None
            if isinstance(error, OSError) and error.errno in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise PrivacyError(
                    f"{self.path} is on a file system that locks no files ({error.strerror}), so another run could "
                    "write to the ledger unseen: put it on a local disk"
                ) from None
            if isinstance(error, OSError):
                error.filename = str(self.path)
            raise
        return True

    def _adopt(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._finalizer = weakref.finalize(self, _unlock_and_close, descriptor, self._owner)

    def content(self) -> bytes:
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            return file.read()

    def append(self, line: bytes, *, size: int, durable: bool) -> None:
        """Append a line to a file of this size, or nothing. After a failed sync the file is closed."""
        self._check_ours(size)
        try:
            _write(self._descriptor, line)
            if durable:
                self._sync(new=size == 0)
        except BaseException as error:
            if isinstance(error, OSError):
                error.filename = str(self.path)
            if self._finalizer.alive:
                os.ftruncate(self._descriptor, size)
            raise

    def cut(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._sync(new=False)

    def replace_end(self, lines: bytes, *, start: int, size: int) -> bool:
        """Replace all bytes after ``start`` in a file of this size by these lines, durably, and return whether it was.

        It is not where the disk has no room, the file was moved, or a second name (a hard link) would keep the old
        content. The file is closed where it is unknown which of the two a crash would leave.
        """
        self._check_ours(size)
        if not self._is_replaceable():
            return False
        descriptor = -1
        try:
            with atomic_files.atomic_write(self.path, mode=0o600) as beside:
                descriptor = os.open(beside, os.O_RDWR | os.O_APPEND)
                _lock(descriptor)  # before it takes the name under which other processes open it
                _write(descriptor, self.content()[:start] + lines)
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
        self._finalizer()
        self._close_folder()

    def _check_ours(self, size: int) -> None:
        if not self._finalizer.alive:
            raise PrivacyError(f"{self.path} was closed and records no more releases; open it again with Ledger(path)")
        if os.getpid() != self._owner:
            raise PrivacyError(f"{self.path} belongs to process {self._owner}, of which this is a fork; use it there")
        status = os.fstat(self._descriptor)
        if status.st_nlink == 0 or status.st_size != size:
            changed = "was removed or changed since it was read, by another process or by an interrupted write"
            raise PrivacyError(f"{self.path} {changed}; open it again")
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


def _write(descriptor: int, content: bytes) -> None:
    if os.write(descriptor, content) < len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def check_is_file(path: Path) -> None:
    """Check that what is at a path, if anything, is a file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(f"{path} is a folder; give the ledger in it, such as {path / 'ledger.jsonl'}")
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path} is a device, a pipe or a socket; a ledger is kept in a file on a disk")


def _lock(descriptor: int) -> None:
    import fcntl  # only POSIX systems have it, and reading needs no lock

    for _ in range(_ATTEMPTS - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(_PAUSE)
    return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock_and_close(descriptor: int, owner: int) -> None:
    import fcntl

    if os.getpid() == owner:  # forked processes share the lock, which ends with its owner
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def contents(path: Path) -> Iterator[bytes]:
    """What a file holds, read again for as long as a process writes to it; the first that is a ledger is the right one.

    The first is the whole content, which beside a writer may end within a line, or hold the beginning of one that was
    taken back; the next ones hold whole lines only. Where nobody writes there is one more, undisturbed.
    """
    check_is_file(path)
    with path.open("rb") as file:
        yield _current(file, path)
    for _ in range(_READ_ATTEMPTS):
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
    if status.st_nlink == 0 and os.path.samestat(status, path.stat()):
        raise ValueError(f"{path} {STALE}")
    return content


def _is_written(file: BufferedReader) -> bool:
    """Whether a process has the file locked for writing. If not, none can lock it before the file is closed."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except ImportError:  # no process can write to a ledger on this system
        return False
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    return False


MOST_LINES = 1024  # a tail of so many lines is compacted at the next reservation or charge


class Tail:
    """The lines after ``start``, the last one whose digest may be stored elsewhere. Of these only totals count."""

    def __init__(self, start: End = End()) -> None:  # noqa: B008 - it is immutable
        self.start = start
        self.heads: list[str] = []
        self._steps: Counter[tuple[Series, Kind]] = Counter()

    @property
    def shrinks(self) -> bool:
        """Whether compaction leaves fewer than half as many lines."""
        return len(self.heads) > 2 * len(self._steps)

    def add(self, entry: Entry, end: End) -> None:
        self._steps[entry.series, entry.kind] += entry.steps
        self.heads.append(end.head)

    def shortened(self, dataset: str) -> tuple[bytes, Self, End]:
        """A line for each run, event and kind with the same totals, the tail that they form, and the end after them.

        A reservation precedes its commits and its returned steps, so any beginning of these lines is a valid ledger.
        """
        lines, tail, end = b"", type(self)(self.start), self.start
        for kind in Kind:
            for series in dict.fromkeys(series for series, of in self._steps if of is kind):
                entry = Entry(kind, dataset, series, self._steps[series, kind])
                line, end = entry.line(end)
                lines += line
                tail.add(entry, end)
        return lines, tail, end


def repair(path: Path | str) -> bool:
    """Drop a last line that a crash cut off, as :func:`repaired`; return whether there was one."""
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
