"""What ranks tell each other to agree: one short message of a fixed size each, as text that runs no code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from noisette.errors import MissingRuleError, PrivacyError

MESSAGE_BYTES = 2048
_LONGEST_TEXT = 1200  # characters; in JSON a character may take several bytes
_KINDS = (PrivacyError, MissingRuleError, ValueError, TypeError, FileNotFoundError, OSError, MemoryError)
_ERRORS: Mapping[str, type[Exception]] = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True)
class Message:
    """What one rank says at a point where all ranks meet.

    Args:
        phase: the point at which it is.
        error: the type of the error that keeps it from going on; empty if nothing does.
        text: of the error.
        numbers: of which the largest of all ranks is asked for.
    """

    phase: str
    error: str = ""
    text: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def refusing(cls, phase: str, error: BaseException) -> Message:
        """The message of a rank that cannot go on."""
        names = [kind.__name__ for kind in type(error).__mro__]
        return cls(phase, next((name for name in names if name in _ERRORS), names[0]), str(error))

    def packed(self) -> Tensor:
        """The message as bytes; a text that is too long is cut."""
        for longest in (_LONGEST_TEXT, 200, 0):
            facts = [self.phase, self.error, self.text[:longest], dict(self.numbers)]
            content = json.dumps(facts, ensure_ascii=False).encode(errors="replace")
            if len(content) <= MESSAGE_BYTES:
                break
        return torch.frombuffer(bytearray(content.ljust(MESSAGE_BYTES)), dtype=torch.uint8)

    @classmethod
    def unpacked(cls, content: Tensor) -> Message:
        """The message with these bytes."""
        return cls(*json.loads(bytes(content.tolist())))


def raise_if_any_refuses(messages: list[Message]) -> None:
    """Check that all ranks are at the same point, and that none of them refuses.

    Raises:
        Exception: of the type that the first refusing rank met.
        PrivacyError: the ranks are at different points.
    """
    for rank, message in enumerate(messages):
        if message.error:
            kind = _ERRORS.get(message.error)
            name = "" if kind else f"{message.error}: "
            raise (kind or PrivacyError)(f"rank {rank}, at {message.phase}: {name}{message.text}")
    if len({message.phase for message in messages}) > 1:
        where = "; ".join(f"rank {rank} is at {message.phase}" for rank, message in enumerate(messages))
        raise PrivacyError(
            f"the ranks of a run do different things: {where}. Every rank runs the same script, takes every batch and "
            "closes the run at the same step"
        )
