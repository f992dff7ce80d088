"""The names in a message, without filling the screen."""

from __future__ import annotations

from collections.abc import Sequence

_FEW = 5


def first_few(names: Sequence[str]) -> str:
    """The first five names, and how many more there are.

    >>> first_few("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
