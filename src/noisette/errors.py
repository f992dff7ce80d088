"""The refusals: what noisette raises instead of a warning when a privacy claim would not hold."""

from __future__ import annotations


class PrivacyError(RuntimeError):
    """What was asked cannot carry a privacy claim; the message names the cause and the way out."""


class MissingRuleError(PrivacyError):
    """A trainable parameter is used by an operation whose per-example gradient is not known."""


class UnsupportedEventError(ValueError):
    """An accountant has no sound price for an event. The message names the event and an accountant that has one."""
