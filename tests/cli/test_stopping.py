"""The reaction to signals: at once before the first step and when asked twice, otherwise after the step."""

from __future__ import annotations

import os
import signal
import weakref

import pytest

from noisette.cli.watch import Stopping


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_the_run_after_the_step(number, error):
    with Stopping() as stopping:
        stopping.after_step()
        send(number)
        with pytest.raises(error):
            stopping.after_step()


def test_before_the_first_step_and_a_second_time_it_ends_at_once():
    with Stopping() as stopping:
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
        stopping.after_step()
        send(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)


def test_a_signal_is_not_lost_where_exceptions_are():
    class Freed:
        pass

    with Stopping() as stopping:
        stopping.after_step()
        thing = Freed()
        kept = weakref.ref(thing, lambda reference: send(signal.SIGINT))  # what is raised here is printed and ignored
        del thing
        assert kept() is None
        with pytest.raises(KeyboardInterrupt):
            stopping.after_step()


def test_handlers_are_as_before_and_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Stopping() as stopping:
            stopping.after_step()
            send(signal.SIGINT)
            stopping.after_step()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    with Stopping():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
