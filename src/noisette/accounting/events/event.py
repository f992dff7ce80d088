"""What every event is: a released mechanism with its parameters, under a neighbouring relation."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar, TypeAlias

from noisette.errors import count


class Neighbouring(enum.Enum):
    """The neighbouring relation: the pairs of data sets that a guarantee makes hard to distinguish."""

    ADD_OR_REMOVE_ONE = "add or remove one record"
    REPLACE_ONE = "replace one record"
    ADD_OR_REMOVE_GROUP = "add or remove a group of records"
    ADD_OR_REMOVE_USER = "add or remove all records of one user"


class Event:
    """A released mechanism with its parameters; equal events are the same key of a mapping."""

    mechanism: ClassVar[str]
    """The name of this kind of event in the ledger."""
    neighbouring: ClassVar[Neighbouring] = Neighbouring.ADD_OR_REMOVE_ONE
    sampling: ClassVar[str]
    """How the records of a release are chosen, in a few words."""

    @property
    def round_length(self) -> int:
        """How many steps form a round, which is paid for as a whole: 1 but for noise that is correlated over steps."""
        return 1

    @property
    def relation(self) -> str:
        """The neighbouring relation in words. All events of one run have the same."""
        return self.neighbouring.value

    def __repr__(self) -> str:
        """The constructor call; a release without parts is shown without them."""
        values = {name: getattr(self, name) for name in getattr(self, "__match_args__", ())}
        shown = [f"{name}={value!r}" for name, value in values.items() if name != "parts" or value]
        return f"{type(self).__name__}({', '.join(shown)})"


Events: TypeAlias = Mapping[Event, int]
"""Which releases were made, and how many times each. Their order does not matter."""


def in_whole_rounds(event: Event, times: int) -> int:
    """This many releases of an event, rounded up to whole rounds."""
    return -(-times // event.round_length) * event.round_length


def check_events(events: Events) -> None:
    """Check that keys are events of one neighbouring relation and values are integers of at least one.

    Raises:
        TypeError, ValueError: they are not; the message names what is wrong.
    """
    relations: dict[str, Event] = {}
    for event, times in events.items():
        if not isinstance(event, Event):
            raise TypeError(f"expected a mapping from events such as PoissonGaussian to times, got the key {event!r}")
        count(times=times)
        relations.setdefault(event.relation, event)
    if len(relations) > 1:
        listed = "; ".join(f"{event!r}: {relation}" for relation, event in relations.items())
        raise ValueError(f"events of different neighbouring relations cannot be composed: {listed}")
