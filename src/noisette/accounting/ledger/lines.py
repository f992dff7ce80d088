"""The lines of a ledger file: one JSON object each, sealed by a chain of SHA-256 digests."""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from noisette.accounting.events import Event, in_whole_rounds
from noisette.accounting.serialization import event_of, facts_of
from noisette.errors import count

_LONGEST_LINE = 4096  # bytes; a line has some 500


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
    """The releases of one event by one run: what the commits and returned steps of a run are checked against.

    Args:
        event: the event.
        run: the random id of the run; empty in lines that were written before lines named their run.
        dimensions: number of elements with noise in each release, which older lines state; it counts for nothing.
    """

    event: Event
    run: str = ""
    dimensions: int | None = None


@dataclass(frozen=True)
class Entry:
    """The content of one line. Its random mark distinguishes two ledgers with otherwise equal lines."""

    kind: Kind
    dataset: str
    series: Series
    steps: int
    mark: str = field(default="", compare=False)  # drawn when the line is written

    def line(self, after: End) -> tuple[bytes, End]:
        """The entry as the line that follows this end of a ledger, and the new end."""
        facts = {
            "sequence": after.lines,
            "kind": self.kind.value,
            "dataset": self.dataset,
            "steps": self.steps,
            **_facts_of(self.series),
            "mark": self.mark or secrets.token_hex(8),
            "previous": after.head,
        }
        sealed = json.dumps(facts)
        digest = hashlib.sha256(sealed.encode()).hexdigest()
        line = f'{sealed[:-1]}, "digest": "{digest}"}}\n'.encode()
        return line, End(after.lines + 1, after.size + len(line), digest)

    @classmethod
    def parse(cls, line: bytes) -> Entry:
        """The entry in a line.

        Raises:
            ArithmeticError, KeyError, RecursionError, TypeError, ValueError: the line holds no entry.
        """
        facts = json.loads(line)
        count(steps=facts["steps"], dimensions=facts.get("dimensions", 1))
        series = Series(event_of(facts), str(facts.get("run_id", "")), facts.get("dimensions"))
        if (kind := Kind(facts["kind"])) is not Kind.COMMIT:
            check_whole_rounds(series.event, facts["steps"])
        return cls(kind, str(facts["dataset"]), series, facts["steps"], str(facts["mark"]))


def check_whole_rounds(event: Event, steps: int) -> None:
    """Check that steps with correlated noise are whole rounds: two begun ones are not one, so they would not add up.

    Raises:
        ValueError: they are not.
    """
    if steps % event.round_length:
        raise ValueError(
            f"{event!r} is paid for by rounds of {event.round_length} steps, got {steps} steps; record "
            f"{in_whole_rounds(event, steps)}, which cost the same"
        )


def sealed_entries(content: bytes, path: Path) -> Iterator[tuple[Entry, End]]:
    """Each entry of a ledger's content, with the end of the ledger after it.

    Raises:
        ValueError: a line is not as it was written; the message names the first such line, and the path.
    """
    end, written = End(), _written(content, path)
    while end.size < len(written):
        if found := _entry_after(end, written):
            yield found
            end = found[1]
        elif _lacks_its_newline(end, written) or _is_beginning(end, written):
            raise _cut_off(end, path, "this last line was cut off, as by a crash")
        else:
            raise _altered(end, path)
    if zeros := len(content) - len(written):
        raise _cut_off(end, path, f"the file ends in {zeros:,} zero bytes, as after a power failure")


def repaired(content: bytes, path: Path) -> bytes:
    """The content without a last line that was cut off; a last line that lacks only its newline gets it.

    Zero bytes at the end are dropped first: after a power failure a file may have its new size and not yet its new
    bytes.

    Guarantee: the privacy cost does not decrease. A reservation or a charge that was cut off had not reached the disk,
    so the releases that waited for it never happened; a commit does not change the cost; steps whose return was cut
    off stay counted.

    Raises:
        ValueError: a line is damaged in any other way.
    """
    written = _written(content, path)
    whole = written[: written.rfind(b"\n") + 1]
    end = End()
    for _, end in sealed_entries(whole, path):  # noqa: B007 - the last end is used
        pass
    if _lacks_its_newline(end, written):
        return written + b"\n"
    if whole == written or _is_beginning(end, written):
        return whole
    raise _altered(end, path)


def _facts_of(series: Series) -> dict[str, Any]:
    named: dict[str, Any] = {"run_id": series.run} if series.run else {}  # older lines do not name their run
    if series.dimensions is not None:
        named["dimensions"] = series.dimensions
    return named | facts_of(series.event)


def _written(content: bytes, path: Path) -> bytes:
    """The content without zero bytes at its end.

    The first line is on the disk before anything is released, so a file of zeros may have one line that was never
    written; where it is longer, lines that counted have been lost.
    """
    written = content.rstrip(b"\0")
    if not written and len(content) >= _LONGEST_LINE:
        raise _altered(End(), path)
    return written


def _entry_after(end: End, content: bytes) -> tuple[Entry, End] | None:
    """The entry of the line after this end and the new end; ``None`` where the line is not as it was written."""
    line = content[end.size : content.find(b"\n", end.size) + 1]
    try:
        entry = Entry.parse(line)
    except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError):
        return None
    written, next_end = entry.line(end)
    return (entry, next_end) if written == line else None


def _lacks_its_newline(end: End, content: bytes) -> bool:
    return b"\n" not in content[end.size :] and _entry_after(end, content + b"\n") is not None


def _is_beginning(end: End, content: bytes) -> bool:
    """Whether the content after this end is the beginning of a line: plain text of an object that is not closed.

    A whole line with a damaged end is not: it may be a reservation that was used.
    """
    rest = content[end.size :]
    start = f'{{"sequence": {end.lines}, "kind": "'.encode()
    if rest[: len(start)] != start[: len(rest)] or not rest.isascii() or not rest.decode().isprintable():
        return False
    try:
        json.JSONDecoder().raw_decode(rest.decode())
    except ValueError:
        return True
    return False


def _cut_off(end: End, path: Path, fact: str) -> ValueError:
    return ValueError(
        f"{path}, line {end.lines + 1}: {fact}. Nothing was released on its account; repair the file with: "
        f"noisette ledger repair {shlex.quote(str(path.absolute()))}"
    )


def _altered(end: End, path: Path) -> ValueError:
    return ValueError(
        f"{path}, line {end.lines + 1}: this line was altered, or lines before it are missing. The privacy cost cannot "
        "be computed from this file; restore it from a copy"
    )
