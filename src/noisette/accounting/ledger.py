"""The ledger: what was released, written down before it happens."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Self

from noisette._check import count
from noisette.accounting.events import Event
from noisette.accounting.facts import event_of, facts_of
from noisette.errors import PrivacyRefusal


class Kind(Enum):
    """What a line of the ledger says of its steps."""

    RESERVE = "reserve"
    COMMIT = "commit"
    RELEASE = "release"


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    kind: Kind
    dataset: str
    event: Event
    steps: int

    def line(self, *, sequence: int, previous: str) -> tuple[bytes, str]:
        """The entry as a line of JSON, and the digest that seals it and that the next line carries."""
        facts = {
            "sequence": sequence,
            "kind": self.kind.value,
            "dataset": self.dataset,
            "steps": self.steps,
            **facts_of(self.event),
            "previous": previous,
        }
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
        return json.dumps(facts | {"digest": digest}).encode() + b"\n", digest

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        """The entry that a line holds.

        Raises:
            KeyError, TypeError, ValueError: it holds none.
        """
        facts = json.loads(line)
        count(steps=facts["steps"])
        return cls(Kind(facts["kind"]), str(facts["dataset"]), event_of(facts), facts["steps"])


class Ledger:
    """The releases made on one data set, in memory or in an append-only file.

    A run reserves steps before it draws their batches, commits each step after its release, and gives back at its end
    what it did not use. What counts is what is reserved, so a crash can only make the price larger. The file holds one
    JSON object per line, sealed by a chain of SHA-256 digests, and nothing that depends on the data.

    Args:
        path: the file; made, with mode 0600, at the first reservation, or continued if it exists. ``None`` keeps the
            ledger in memory.
        dataset: the declared name of the data set. Runs on one data set share a ledger, so that their prices add up.

    Guarantee: when :meth:`reserve` has returned, the reservation survives a crash of the machine.

    Raises:
        ValueError: a line of the file was cut or altered, or the file belongs to another data set.

    >>> from noisette.accounting import PoissonGaussian
    >>> ledger = Ledger()
    >>> ledger.reserve(PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1), 16)
    >>> ledger.commit()
    >>> ledger.release()
    >>> ledger.events
    {PoissonGaussian(sampling_rate=0.01, noise_multiplier=1.1): 1}
    """

    def __init__(self, path: Path | None = None, *, dataset: str = "unnamed") -> None:
        self.path = path
        self.dataset = dataset
        self.head = ""
        self._sequence = 0
        self._size = 0
        self._committed = 0
        self._reserved: Counter[Event] = Counter()
        self._unused: Counter[Event] = Counter()
        self._current: Event | None = None
        if path is not None and path.exists():
            self._replay(path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """The ledger that a file holds, to be priced or continued.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: a line was cut or altered.
        """
        first = next(_sealed_entries(path.read_bytes(), path), None)
        return cls(path, dataset=first[0].dataset if first else "unnamed")

    @property
    def events(self) -> dict[Event, int]:
        """What must be paid for: all that was reserved, less what was given back."""
        return {event: steps for event, steps in self._reserved.items() if steps}

    @property
    def committed(self) -> int:
        """How many steps were released, in this run and in earlier ones."""
        return self._committed

    def reserve(self, event: Event, steps: int) -> None:
        """Write down, durably, that this many releases may follow. Call it before their batches are drawn.

        Raises:
            TypeError, ValueError: ``steps`` is not a whole number of at least 1.
            PrivacyRefusal: something else has written to the file.
            OSError: the file cannot be written; nothing was reserved.
        """
        count(steps=steps)
        self._append(Kind.RESERVE, event, steps, durable=True)
        self._unused[event] += steps
        self._current = event

    def commit(self) -> None:
        """Write down that one of the steps reserved last was released.

        Raises:
            PrivacyRefusal: none of them is left, or something else has written to the file.
            OSError: the file cannot be written; the step stays reserved, and so paid for.
        """
        event = self._current
        if event is None or not self._unused[event]:
            raise PrivacyRefusal(
                "commit() found no reserved step; call reserve(event, steps) before the batch is drawn"
            )
        self._append(Kind.COMMIT, event, 1, durable=False)
        self._unused[event] -= 1

    def release(self) -> None:
        """Give back, durably, what this object reserved and did not commit. A reservation of another process stays.

        Raises:
            PrivacyRefusal: something else has written to the file.
            OSError: the file cannot be written; the steps stay reserved, and so paid for.
        """
        for event, steps in list(self._unused.items()):
            if steps:
                self._append(Kind.RELEASE, event, steps, durable=True)
            del self._unused[event]

    def _append(self, kind: Kind, event: Event, steps: int, *, durable: bool) -> None:
        entry = Entry(kind, self.dataset, event, steps)
        if self.path is not None:
            line, digest = entry.line(sequence=self._sequence, previous=self.head)
            _append_line(self.path, line, size=self._size, durable=durable)
            self._size, self.head = self._size + len(line), digest
        self._count(entry)

    def _count(self, entry: Entry) -> None:
        self._sequence += 1
        match entry.kind:
            case Kind.RESERVE:
                self._reserved[entry.event] += entry.steps
            case Kind.COMMIT:
                self._committed += entry.steps
            case Kind.RELEASE:
                self._reserved[entry.event] -= entry.steps

    def _replay(self, path: Path) -> None:
        content = path.read_bytes()
        for entry, digest in _sealed_entries(content, path):
            if entry.dataset != self.dataset:
                raise ValueError(
                    f"{path} is the ledger of data set {entry.dataset!r}, not of {self.dataset!r}; choose another "
                    "path, or name the data set as the ledger does"
                )
            self._count(entry)
            self.head = digest
        self._size = len(content)


def _sealed_entries(content: bytes, path: Path) -> Iterator[tuple[Entry, str]]:
    """Each entry with its digest, or a ``ValueError`` that names the first line that is not as it was written."""
    previous = ""
    for sequence, line in enumerate(content.splitlines(keepends=True)):
        try:
            entry = Entry.parse(line)
        except (KeyError, TypeError, ValueError):
            entry = None
        if entry is None or (sealed := entry.line(sequence=sequence, previous=previous))[0] != line:
            raise ValueError(
                f"{path}, line {sequence + 1}: this line was cut or altered, or lines before it are missing. The price "
                "cannot be known from this file; restore it from a copy"
            )
        previous = sealed[1]
        yield entry, previous


def _append_line(path: Path, line: bytes, *, size: int, durable: bool) -> None:
    """Append a line to a file of this size, all of it or nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if os.fstat(descriptor).st_size != size:
            raise PrivacyRefusal(f"{path} was changed by someone else since it was read; start again from the file")
        if os.write(descriptor, line) < len(line):
            os.ftruncate(descriptor, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if size == 0:  # a new file is not durable before its name is
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
