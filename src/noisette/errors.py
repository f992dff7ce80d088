"""The errors that noisette raises where a privacy guarantee would not hold."""

from __future__ import annotations


class PrivacyError(RuntimeError):
    """The request cannot have a privacy guarantee; the message names the cause and the way out."""


class MissingRuleError(PrivacyError):
    """A trainable parameter is used by an operation whose per-example gradient is not known."""


class UnsupportedEventError(ValueError):
    """An accountant cannot bound the cost of an event. The message names the event and an accountant that can."""
