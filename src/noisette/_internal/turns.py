"""Sections of two kinds that exclude each other: records are read, or random generators are in earlier states."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """The thread that reads a record and those that have brought generators into other states take turns.

    Several threads may be in sections of the second kind: within a backward pass, a thread of torch for an accelerator
    computes a block again while the caller's thread waits for it in such a section of its own. A section never waits
    for its own thread.
    """

    def __init__(self) -> None:
        self._free = threading.Lock()  # held by the one that reads, or on behalf of all that have gone back
        self._reader: int | None = None  # its thread
        self._entering = threading.Lock()
        self._back: list[int] = []  # threads of the other sections

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Within it a record is read."""
        me = threading.get_ident()
        if me == self._reader or me in self._back:
            yield
            return
        with self._free:
            self._reader = me
            try:
                yield
            finally:
                self._reader = None

    @contextmanager
    def going_back(self) -> Iterator[None]:
        """Within it generators are in states that they were in before, or that others can compute."""
        me = threading.get_ident()
        if me == self._reader:
            yield
            return
        with self._entering:
            if not self._back:
                self._free.acquire()
            self._back.append(me)
        try:
            yield
        finally:
            with self._entering:
                self._back.remove(me)
                if not self._back:
                    self._free.release()
