"""The errors that noisette raises where a privacy guarantee would not hold, and names in their messages."""

from __future__ import annotations

from collections.abc import Sequence

_FEW = 5


class PrivacyError(RuntimeError):
    """The request cannot have a privacy guarantee; the message names the cause and the way out."""


class MissingRuleError(PrivacyError):
    """A trainable parameter is used by an operation whose per-example gradient is not known."""


class UnsupportedEventError(ValueError):
    """An accountant cannot bound the cost of an event. The message names the event and an accountant that can."""


def first_few(names: Sequence[str]) -> str:
    """The first five names, and how many more there are, for a message that does not fill the screen.

    >>> first_few("abcdefg")
    'a, b, c, d, e and 2 more'
    """
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")
