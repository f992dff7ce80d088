"""The reaction to signals: at once before the first step and when asked twice, otherwise after the step."""

import os
import signal
import weakref

import pytest

from noisette.cli.train import Watch


def send(number):
    os.kill(os.getpid(), number)


def test_a_signal_is_not_lost_where_exceptions_are():
    class Freed:
        pass

    with Watch("a run", shown=False) as watch:
        watch.show(1, 2, "")
        thing = Freed()
        kept = weakref.ref(thing, lambda reference: send(signal.SIGINT))  # what is raised here is printed and ignored
        del thing
        assert kept() is None
        assert "stopping after this step" in watch._progress.tasks[0].fields["status"]
        with pytest.raises(KeyboardInterrupt):
            watch.show(1, 2, "")


def test_handlers_are_as_before_and_ignored_signals_stay_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Watch("a run", shown=False) as watch:
            watch.show(1, 2, "")
            send(signal.SIGINT)
            watch.show(1, 2, "")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    with Watch("a run", shown=False):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
