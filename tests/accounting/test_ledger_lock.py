import copy
import errno
import fcntl
import os
import pickle
import subprocess
import sys

import pytest

from noisette.accounting import Ledger, PoissonGaussian
from noisette.errors import PrivacyError

EVENT = PoissonGaussian(0.01, 1.1)
HOLD = """
import sys
from pathlib import Path
from noisette.accounting import Ledger, PoissonGaussian
ledger = Ledger(Path(sys.argv[1]))
ledger.reserve(PoissonGaussian(0.01, 1.1), 16)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_is_refused_until_the_first_is_dead_and_reads_without_a_lock(path, other_process):
    with pytest.raises(PrivacyError, match=r"ledger\.jsonl is open for writing elsewhere.*wait until"):
        Ledger(path)
    with pytest.raises(PrivacyError, match="open for writing elsewhere"):
        Ledger.repair(path)
    assert Ledger.read(path).events == {EVENT: 16}
    other_process.kill()
    other_process.wait()
    with Ledger(path) as ledger:
        ledger.reserve(EVENT, 1)
    assert Ledger.read(path).events == {EVENT: 17}


def test_a_second_object_is_refused_until_the_first_is_closed(path):
    first = Ledger(path)
    Ledger.read(path)  # which does not end the lock
    with pytest.raises(PrivacyError, match="share one Ledger"):
        Ledger(path)
    first.reserve(EVENT, 1)
    first.close()
    first.close()
    Ledger(str(path)).reserve(EVENT, 1)  # an object that is forgotten holds no lock
    assert Ledger(path).events == Ledger.read(path).events == {EVENT: 2}


@pytest.mark.parametrize("content", [b"{}\n", b'{"sequence": 0, "k'])
def test_a_file_that_is_refused_is_not_left_locked(path, content):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"not a ledger|line 1: ") as refusal:
        Ledger(path)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert refusal.tb, "the traceback, which keeps the ledger alive, was still there"


def test_a_closed_ledger_is_read_and_not_written_nor_is_one_that_was_read(path):
    with Ledger(path, dataset="digits") as ledger:
        ledger.reserve(EVENT, 4)
    read = Ledger.read(path)
    for write in (lambda: ledger.reserve(EVENT, 1), lambda: ledger.charge(EVENT), ledger.commit, ledger.release):
        with pytest.raises(PrivacyError, match="closed"):
            write()
    for write in (lambda: read.reserve(EVENT, 1), lambda: read.charge(EVENT)):
        with pytest.raises(PrivacyError, match=r"was opened read-only.*dataset='digits'"):
            write()
    assert Ledger.read(path).events == ledger.events == read.events == {EVENT: 4}


def test_a_ledger_that_is_open_cannot_be_copied(path):
    ledger = Ledger(path)
    for attempt in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            attempt(ledger)


def test_a_forked_process_cannot_write_and_takes_no_lock_along(path):
    script = f"""
import os, signal
from pathlib import Path
from noisette.accounting import Ledger, PoissonGaussian
from noisette.errors import PrivacyError
path, event = Path({str(path)!r}), PoissonGaussian(0.01, 1.1)
ledger = Ledger(path)
ledger.reserve(event, 3)
keeper = os.fork()  # like the worker of a data loader
if keeper == 0:
    signal.alarm(20)
    signal.pause()
done, tell = os.pipe()
child = os.fork()
if child == 0:
    try:
        ledger.commit()
    except PrivacyError as refusal:
        print(refusal, flush=True)
    ledger.close()  # closes the child's own descriptor and keeps the parent's lock
    os.write(tell, b"closed")
    os._exit(0)
os.read(done, 6)
try:
    Ledger(path)
except PrivacyError as refusal:
    print(refusal, flush=True)
ledger.commit()
ledger.close()
try:
    Ledger(path).reserve(event, 1)  # though the keeper is still running, with a copy of the open descriptor
finally:
    os.kill(keeper, signal.SIGKILL)
"""
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "was forked" in shown.splitlines()[0]
    assert "open for writing elsewhere" in shown.splitlines()[1]
    assert (Ledger.read(path).events, Ledger.read(path).committed) == ({EVENT: 4}, 1)


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(path.read_bytes() + b"x"), os.unlink])
def test_a_write_or_a_removal_by_another_process_is_detected(path, change):
    with Ledger(path) as ledger:
        ledger.reserve(EVENT, 4)
        change(path)  # the lock is advisory
        with pytest.raises(PrivacyError, match="removed or changed since it was read"):
            ledger.reserve(EVENT, 1)


def test_a_disk_without_locks_is_refused_in_a_sentence_and_leaves_nothing_open(path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(PrivacyError, match=r"ledger\.jsonl is on a file system.*locks no files.*disk") as refusal:
        Ledger(path)
    assert os.listdir("/proc/self/fd") == before
    assert refusal.tb, "the traceback, which keeps the file's object alive, was still there"
