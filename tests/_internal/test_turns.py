"""Records are read in no section in which generators are in earlier states, and no thread waits for itself."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from noisette._internal.turns import Turns

Section = Callable[[], AbstractContextManager[None]]


def is_entered_meanwhile(section: Section) -> bool:
    """Whether another thread gets into a section now."""
    entered = threading.Event()

    def enter() -> None:
        with section():
            entered.set()

    thread = threading.Thread(target=enter, daemon=True)
    thread.start()
    return entered.wait(0.1)


def test_nothing_is_read_while_generators_are_in_earlier_states() -> None:
    turns = Turns()
    with turns.going_back():
        assert not is_entered_meanwhile(turns.reading)
    assert is_entered_meanwhile(turns.reading)


def test_generators_stay_as_they_are_while_a_record_is_read() -> None:
    turns = Turns()
    with turns.reading():
        assert not is_entered_meanwhile(turns.going_back)
        assert not is_entered_meanwhile(turns.reading)
    assert is_entered_meanwhile(turns.going_back)


def test_a_thread_that_is_waited_for_may_go_back_too() -> None:
    """On an accelerator, a block that is computed again within a check is computed in a thread of torch."""
    turns = Turns()
    with turns.going_back():
        assert is_entered_meanwhile(turns.going_back)
        assert not is_entered_meanwhile(turns.reading)
    assert is_entered_meanwhile(turns.reading)


def test_whoever_goes_back_last_lets_records_be_read() -> None:
    turns, may_leave, inside = Turns(), threading.Event(), threading.Event()

    def other() -> None:
        with turns.going_back():
            inside.set()
            may_leave.wait(10)

    thread = threading.Thread(target=other)
    with turns.going_back():
        thread.start()
        assert inside.wait(10)
    assert not is_entered_meanwhile(turns.reading)
    may_leave.set()
    thread.join()
    assert is_entered_meanwhile(turns.reading)


def test_no_thread_waits_for_itself() -> None:
    turns = Turns()
    with turns.reading(), turns.going_back(), turns.reading():
        assert not is_entered_meanwhile(turns.reading)
    with turns.going_back(), turns.going_back(), turns.reading():
        assert not is_entered_meanwhile(turns.reading)
    assert is_entered_meanwhile(turns.reading)
