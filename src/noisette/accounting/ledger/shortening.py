"""The end of a ledger that nobody has named yet, and the few lines that say the same."""

from __future__ import annotations

from collections import Counter

from noisette.accounting.events import Event
from noisette.accounting.ledger.lines import End, Entry, Kind

MOST_LINES = 1024
"""So many lines of an end are put together in a few, asked for or not."""


class Tail:
    """The lines behind the last one whose digest may be known elsewhere.

    Only totals count, so the lines can be replaced by one for each event and kind; a digest that a checkpoint names
    must stay.

    Args:
        start: the end of the lines that stay.
    """

    def __init__(self, start: End = End()) -> None:  # noqa: B008 - it never changes
        self.start = start
        self.heads: list[str] = []
        self._steps: Counter[tuple[Event, Kind]] = Counter()

    @property
    def is_long(self) -> bool:
        """Whether there are many lines to be put together."""
        return len(self.heads) >= MOST_LINES

    @property
    def shrinks(self) -> bool:
        """Whether fewer than half as many lines say the same."""
        return len(self.heads) > 2 * len(self._steps)

    def add(self, entry: Entry, end: End) -> None:
        """Another line, which makes this end."""
        self._steps[entry.event, entry.kind] += entry.steps
        self.heads.append(end.head)

    def shortened(self, dataset: str) -> tuple[bytes, Tail, End]:
        """Lines with the same totals, the tail that they are, and the end that they make.

        Guarantee: reservations come before what is said of them, so a file that ends anywhere in these lines is none
        that counts too little.
        """
        lines, tail, end = b"", Tail(self.start), self.start
        for kind in Kind:
            for event in dict.fromkeys(event for event, of in self._steps if of is kind):
                entry = Entry(kind, dataset, event, self._steps[event, kind])
                line, end = entry.line(end)
                lines += line
                tail.add(entry, end)
        return lines, tail, end
