"""A process killed, interrupted or failed at any moment leaves a ledger that counts no less than what happened.

What happened is counted outside the ledger: the process adds a byte to another file where it would call the mechanism.
"""

import errno
import os
import subprocess
import sys
from contextlib import suppress
from functools import partial
from itertools import count

import pytest

from failing_calls import FailingCall
from noisette.accounting import Ledger, PoissonGaussian
from noisette.errors import PrivacyError

EVENT = PoissonGaussian(0.01, 1.1)
OTHER = PoissonGaussian(1.0, 7.0)

# A run of four leases of two steps, one step of the last given back, and a query on its own between steps.
RUN = """
import os, signal, sys
from pathlib import Path
from noisette.accounting import Ledger, PoissonGaussian

EVENT, OTHER = PoissonGaussian(0.01, 1.1), PoissonGaussian(1.0, 7.0)

def call(file, of):
    os.write(file, of)

def run(folder, leases=4):
    file = os.open(folder / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Ledger(folder / "ledger.jsonl") as ledger:
        for lease in range(leases):
            ledger.reserve(EVENT, 2)
            for step in range(1 if lease == leases - 1 else 2):
                call(file, b"e")
                ledger.commit()
            ledger.charge(OTHER)
            call(file, b"o")
        ledger.release()

def killed(folder, kill):
    folder.mkdir()
    child = os.fork()
    if child == 0:
        try:
            kill(folder)
        finally:
            os._exit(0)
    return child

def die():
    os.kill(os.getpid(), signal.SIGKILL)
"""


# Killed at the line of the ledger's code with this number; exits 0 where there are fewer lines.
AT_EVERY_LINE = """
def at_line(number):
    def kill(folder):
        left = number
        def trace(frame, event, _):
            nonlocal left
            if "ledger" not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left < 0:
                    die()
            return trace
        sys.settrace(trace)
        run(folder, leases=1)
    return kill

os.fsync = lambda descriptor: None  # the result of a kill does not depend on the disk, and this is quicker
for number in range(10**6):
    child = killed(Path(sys.argv[1]) / str(number), at_line(number))
    if os.waitpid(child, 0)[1] == 0:
        break
"""

# Killed within the write with this number, after a part of its bytes; there are several parts for every write.
WITHIN_WRITES = """
def within(number, share):
    def kill(folder):
        left, write = number, os.write
        def cut(descriptor, data):
            nonlocal left
            left -= data != b"e" and data != b"o"
            if left >= 0:
                return write(descriptor, data)
            write(descriptor, data[:max(1, int(share * len(data)))])
            die()
        os.write = cut
        run(folder, leases=2)
    return kill

os.fsync = lambda descriptor: None
names = iter(range(10**6))
for number in range(10**6):
    ends = []
    for share in (0.0, 0.1, 0.5, 0.99):
        child = killed(Path(sys.argv[1]) / str(next(names)), within(number, share))
        ends.append(os.waitpid(child, 0)[1])
    if 0 in ends:
        break
"""


def check(folder):
    """Whether the ledger needed a repair; fails where it counts less than what happened."""
    path = folder / "ledger.jsonl"
    calls = (folder / "calls").read_bytes() if (folder / "calls").exists() else b""
    if not path.exists():
        assert not calls
        return False
    mended, events = Ledger.repair(path), Ledger.read(path).events
    for event, call in ((EVENT, b"e"), (OTHER, b"o")):
        assert calls.count(call) <= events.get(event, 0) <= calls.count(call) + 2
    return mended


def in_a_child(script, folder):
    subprocess.run([sys.executable, "-c", RUN + script, str(folder)], check=True)
    return sorted(folder.iterdir())


def test_a_kill_at_any_line_of_the_ledger_never_hides_a_call(tmp_path):
    folders = in_a_child(AT_EVERY_LINE, tmp_path)
    assert len(folders) > 100
    for folder in folders:
        check(folder)


def test_a_kill_within_any_write_leaves_what_can_be_mended(tmp_path):
    folders = in_a_child(WITHIN_WRITES, tmp_path)
    mended = [check(folder) for folder in folders]
    assert mended[:4] == [True] * 4
    assert len(mended) > 30
    assert mended.count(False) <= 4  # only the runs that no kill reached


def run_in_spite_of(path, failures, steps=2):
    """The releases of a run that continues after each failure, and gives back unused steps at its end."""
    calls, going_on = {EVENT: 0, OTHER: 0}, partial(suppress, failures, PrivacyError)
    with going_on(), Ledger(path) as ledger:
        for _ in range(2):
            with going_on():
                ledger.reserve(EVENT, steps + 1)
            for _ in range(steps):
                with going_on():
                    ledger.commit()
                    calls[EVENT] += 1
            with going_on():
                ledger.charge(OTHER)
                calls[OTHER] += 1
        for _ in range(2):
            with going_on():
                ledger.release()
    return calls


def counts_all(path, calls):
    events = Ledger.read(path).events if path.exists() else {}
    assert all(events.get(event, 0) >= times for event, times in calls.items())


@pytest.mark.parametrize("once", [True, False], ids=["once", "for-good"])
@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
@pytest.mark.parametrize(
    ("name", "error"),
    [
        *((name, OSError(errno.ENOSPC, "disk full")) for name in ("write", "fsync", "replace", "open")),
        *((name, KeyboardInterrupt()) for name in ("write", "fsync", "replace", "open", "lstat", "fstat")),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_system_call_that_fails_never_hides_a_call(tmp_path, monkeypatch, name, error, after, once):
    """Also where the end of the file is shortened meanwhile."""
    monkeypatch.setattr("noisette.accounting.ledger_file.MOST_LINES", 5)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # quicker, and no kill is tried here
    for at in count():
        path = tmp_path / f"{at}.jsonl"
        with monkeypatch.context() as patch:
            patch.setattr(os, name, failing := FailingCall(name, at, error, once=once, after=after))
            calls = run_in_spite_of(path, (OSError, KeyboardInterrupt), steps=6)
        if path.exists():
            Ledger.repair(path)
        counts_all(path, calls)
        if failing.left >= 0:
            break
    assert at >= 1
    assert sum(calls.values()) == 14
    assert path.read_bytes().count(b"\n") < 14, "it was shortened"


@pytest.mark.parametrize("room", range(0, 300, 23))
def test_a_disk_that_fills_up_within_a_line_never_hides_a_call(tmp_path, monkeypatch, room):
    path, write = tmp_path / "ledger.jsonl", os.write

    def short(descriptor, line):
        left = room + 850 - os.fstat(descriptor).st_size
        if left <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, line[:left])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", short)
        calls = run_in_spite_of(path, OSError)
    assert Ledger.repair(path) is False, "a line that did not fit is taken back"
    counts_all(path, calls)
    assert 0 < sum(calls.values()) < 6


def test_a_line_that_can_neither_be_written_nor_taken_back_can_be_mended(tmp_path, monkeypatch):
    path, write = tmp_path / "ledger.jsonl", os.write
    with Ledger(path) as ledger:
        ledger.reserve(EVENT, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:50]))
            patch.setattr(os, "ftruncate", FailingCall("ftruncate", 0, OSError(5, "EIO"), once=True))
            with pytest.raises(OSError, match="EIO"):
                ledger.reserve(EVENT, 3)
        with pytest.raises(PrivacyError, match="changed"):
            ledger.commit()
    assert Ledger.repair(path)
    assert Ledger.read(path).events == {EVENT: 3}


def test_a_ledger_whose_sync_failed_is_written_no_more(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.reserve(EVENT, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", FailingCall("fsync", 0, OSError(errno.EIO, "no disk"), once=True))
        with pytest.raises(OSError, match=r"no disk.*ledger\.jsonl"):
            ledger.reserve(EVENT, 3)
    for write in (lambda: ledger.reserve(EVENT, 1), ledger.commit, ledger.release):
        with pytest.raises(PrivacyError, match="closed"):
            write()
    assert ledger.events == {EVENT: 3}
    assert Ledger.read(path).events[EVENT] >= 3


def test_an_interrupt_at_any_line_of_the_ledger_never_hides_a_call(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    number = 0
    while True:
        path, left = tmp_path / f"{number}.jsonl", number

        def trace(frame, event, _):
            nonlocal left
            if "ledger" not in frame.f_code.co_filename or __file__ == frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left == -1:
                    raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            with suppress(KeyboardInterrupt):
                calls = run_in_spite_of(path, KeyboardInterrupt)
        finally:
            sys.settrace(before)
        counts_all(path, calls)
        if left >= 0:
            break
        number += 1
    assert number > 300
