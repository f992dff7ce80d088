"""Compaction: the lines at the end of a ledger, replaced by a few lines with the same totals."""

from __future__ import annotations

from collections import Counter

from noisette.accounting.ledger.lines import End, Entry, Kind, Series

MOST_LINES = 1024
"""A tail of this many lines is compacted at the next reservation or charge."""


class Tail:
    """The lines after the last one whose digest may be stored elsewhere.

    Only totals count, so these lines can be replaced by one for each run, event and kind. The lines before them stay,
    since a checkpoint may name the digest of the last.

    Args:
        start: the end of the lines that stay.
    """

    def __init__(self, start: End = End()) -> None:  # noqa: B008 - it is immutable
        self.start = start
        self.heads: list[str] = []
        self._steps: Counter[tuple[Series, Kind]] = Counter()

    @property
    def is_long(self) -> bool:
        """Whether the tail has so many lines that it is due for compaction."""
        return len(self.heads) >= MOST_LINES

    @property
    def shrinks(self) -> bool:
        """Whether compaction leaves fewer than half as many lines."""
        return len(self.heads) > 2 * len(self._steps)

    def add(self, entry: Entry, end: End) -> None:
        """Add the entry of a further line, and the end of the ledger after it."""
        self._steps[entry.series, entry.kind] += entry.steps
        self.heads.append(end.head)

    def shortened(self, dataset: str) -> tuple[bytes, Tail, End]:
        """Fewer lines with the same totals, the tail that they form, and the end of the ledger after them.

        Guarantee: a reservation precedes its commits and its returned steps, so any beginning of these lines is a
        valid ledger.
        """
        lines, tail, end = b"", Tail(self.start), self.start
        for kind in Kind:
            for series in dict.fromkeys(series for series, of in self._steps if of is kind):
                entry = Entry(kind, dataset, series, self._steps[series, kind])
                line, end = entry.line(end)
                lines += line
                tail.add(entry, end)
        return lines, tail, end
