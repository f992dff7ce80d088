"""One function for inputs of several numbers of rows: which graph serves a call, its own or one of more rows."""

from __future__ import annotations

from collections.abc import Callable

from noisette.capture.captured import Captured
from noisette.capture.schedule import Schedule

_MOST_PADDING = 2  # a graph serves calls of more than half of its rows
_NEARBY = 1.25  # the first graph has the most rows met so far, up to this many times those at hand


class CapturedSizes:
    """A function that is called again and again, with inputs of one kind but for the number of their rows.

    The first graph has so many rows that it serves calls of most sizes. A size that is met often enough gets a graph of
    its own, and each call goes to what was quickest for its size.

    Args:
        make: makes the captured function of one size.
        schedule: when a function is traced and compiled.
        still_to_come: how many times the work so far is still to come.
    """

    def __init__(self, make: Callable[[], Captured], schedule: Schedule, still_to_come: Callable[[], float]) -> None:
        self._make = make
        self._schedule = schedule
        self._still_to_come = still_to_come
        self._spent = 0.0
        self.sizes: dict[int, Captured] = {}

    @property
    def problem(self) -> str | None:
        """Why the function is not captured, at whatever size."""
        return next((of_size.problem for of_size in self.sizes.values() if of_size.problem is not None), None)

    @property
    def operations(self) -> int:
        """The number of operations of the largest graph; 0 without any."""
        return max([of_size.operations for of_size in self.sizes.values()], default=0)

    def choose(self, rows: int) -> tuple[int, Captured] | None:
        """The captured function for a call of so many rows, and its own number of rows; ``None`` for the eager way."""
        own = self._of(rows)
        if self.problem is not None or not own.was_called:
            return None
        able = {
            n: of_size for n, of_size in self.sizes.items() if rows <= n < rows * _MOST_PADDING and of_size.is_traced
        }
        if not self._schedule.keeps_quickest:  # few graphs, because calls wait for them
            n = min(able, default=rows)
            return n, self.sizes[n]
        if own.is_due:
            return rows, own
        if not able:
            return self._first(rows)
        n = min(able, key=lambda n: able[n].seconds)
        return (n, able[n]) if able[n].is_untried or able[n].seconds < own.eager_seconds else None

    def spent(self, rows: int, seconds: float, by: int | None) -> None:
        """A call of so many rows has taken so long, by the graph of so many or eagerly (``None``)."""
        self._spent += seconds
        self._of(rows).spent(seconds, eagerly=by is None)
        if by is not None and by != rows:
            self._of(by).spent(seconds, eagerly=False)

    def close(self) -> None:
        """Stop compiling."""
        for of_size in self.sizes.values():
            of_size.close()

    def _first(self, rows: int) -> tuple[int, Captured] | None:
        """The size to be traced first, if the work of all sizes repays that."""
        repaid = self._spent * self._still_to_come() >= self._schedule.repays_trace
        if self._spent < self._schedule.before_trace or not repaid:
            return None
        largest = max(n for n in self.sizes if n <= rows * _NEARBY)
        return largest, self.sizes[largest]

    def _of(self, rows: int) -> Captured:
        if rows not in self.sizes:
            self.sizes[rows] = self._make()
        return self.sizes[rows]
