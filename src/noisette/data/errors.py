"""The error of this folder: it lists all problems at once and never contains a private value."""

from __future__ import annotations

from collections.abc import Sequence

_LINES = 10  # problems listed; the others are counted
_ROWS = 5  # row numbers listed for one problem


class DataError(ValueError):
    """A data set cannot be read as declared; the message says what is wrong, where, and how to correct it."""


def refuse(subject: str, problems: Sequence[str]) -> None:
    """Raise one ``DataError`` that lists the problems; do nothing if there are none.

    Raises:
        DataError: one problem is stated on one line; of many, the first ten are listed and the others counted.

    >>> refuse("people.csv", [])
    """
    if not problems:
        return
    if len(problems) == 1:
        raise DataError(f"{subject}: {problems[0]}")
    lines = [f"{subject}: {len(problems)} problems", *problems[:_LINES]]
    if len(problems) > _LINES:
        lines.append(f"and {len(problems) - _LINES} more")
    raise DataError("\n  ".join(lines))


def in_rows(indices: Sequence[int]) -> str:
    """The rows at these indices as text; the first row below a header is row 1.

    >>> in_rows([2]), in_rows([0, 6])
    ('in row 3', 'in rows 1 and 7')
    >>> in_rows(range(8))
    'in rows 1, 2, 3, 4, 5 and 3 more'
    """
    rows = [str(int(index) + 1) for index in indices[:_ROWS]]
    if len(indices) == 1:
        return f"in row {rows[0]}"
    last = f"{len(indices) - _ROWS} more" if len(indices) > _ROWS else rows.pop()
    return f"in rows {', '.join(rows)} and {last}"
