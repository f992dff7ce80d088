"""A reader beside a writer sees whole lines and no damage; what a power failure leaves can be repaired."""

import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from noisette.accounting import Gaussian, Ledger, PoissonGaussian
from noisette.errors import PrivacyError

EVENT, OTHER = PoissonGaussian(0.01, 1.1), Gaussian(7.0)


def writer(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


# Beside a writer


def test_a_line_that_is_being_written_is_left_out(small):
    content, held = small.read_bytes(), writer(small)
    for kept in range(0, len(content), 7):
        for zeros in (b"", b"\0" * 40):
            small.write_bytes(content[:kept] + zeros)
            assert Ledger.read(small).entries == content[:kept].count(b"\n")
    os.close(held)


def test_a_line_that_was_cut_is_damage_where_nobody_writes(small):
    small.write_bytes(small.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"line 4: this last line was cut off"):
        Ledger.read(small)
    held = writer(small)
    assert Ledger.read(small).entries == 3
    small.write_bytes(small.read_bytes().replace(b'"steps": 2', b'"steps": 3'))
    with pytest.raises(ValueError, match=r"line 1: this line was altered"):
        Ledger.read(small)
    os.close(held)


def test_a_reader_keeps_no_lock_and_hinders_no_writer(small):
    small.write_bytes(small.read_bytes()[:-9])
    with pytest.raises(ValueError, match="cut off"):
        Ledger.read(small)
    Ledger.repair(small)
    reader = os.open(small, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)  # as a reader that looks whether anybody writes
    timer = threading.Timer(0.03, os.close, [reader])
    timer.start()
    Ledger(small).close()
    timer.join()
    reader = os.open(small, os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    with pytest.raises(PrivacyError, match="open for writing elsewhere"):
        Ledger(small)
    os.close(reader)


WRITER = """
import os, sys
from pathlib import Path
from noisette.accounting import Gaussian, Ledger, PoissonGaussian
from noisette.accounting import ledger_file
from noisette.errors import PrivacyError

ledger_file.MOST_LINES = 16
os.fsync = lambda descriptor: None
EVENT, OTHER = PoissonGaussian(0.01, 1.1), Gaussian(7.0)
whole, left = os.write, 0

def in_pieces(descriptor, data):  # as a reader may see a write that has not ended, and one that finds no room
    global left
    left += 1
    if left % 5 == 0:
        whole(descriptor, data[: len(data) // 2])
        raise OSError(28, "disk full")
    if len(data) > 600:
        return whole(descriptor, data)
    return sum(whole(descriptor, data[at : at + 50]) for at in range(0, len(data), 50))

os.write = in_pieces
with Ledger(Path(sys.argv[1])) as ledger:
    while True:
        for spend in (lambda: ledger.reserve(EVENT, 3), ledger.commit, ledger.commit, lambda: ledger.charge(OTHER)):
            try:
                spend()
            except (OSError, PrivacyError):  # a reservation that found no room has no commits
                pass
"""


def test_a_reader_beside_a_busy_writer_never_sees_damage(path):
    with Ledger(path) as ledger:
        ledger.charge(OTHER)
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)]) as process:
        try:
            while Ledger.read(path).entries < 3:
                assert process.poll() is None, "the writer has ended"
                time.sleep(0.01)
            paid, reads, until = 0, 0, time.monotonic() + 2
            while time.monotonic() < until:
                read = Ledger.read(path)
                assert sum(read.events.values()) >= paid, "the cost never falls while nothing is given back"
                paid, reads = sum(read.events.values()), reads + 1
        finally:
            process.kill()
    assert reads > 20
    assert paid > 100
    Ledger.repair(path)
    with Ledger(path) as ledger:
        assert sum(ledger.events.values()) >= paid


# After a power failure


@pytest.mark.parametrize("zeros", [1, 4096, 100_000])
def test_zeros_at_the_end_are_dropped_with_the_line_that_they_are_part_of(small, zeros):
    content = small.read_bytes()
    for kept in (*range(1, len(content), 61), len(content)):
        before = content[: content.rfind(b"\n", 0, kept) + 1]
        small.write_bytes(content[:kept] + b"\0" * zeros)
        for read in (Ledger.read, Ledger):
            with pytest.raises(ValueError, match=r"cut off|ends in [\d,]+ zero bytes, as after a") as refusal:
                read(small)
            assert f"noisette ledger repair {small}" in str(refusal.value)
        assert Ledger.repair(small)
        assert small.read_bytes() == before
        Ledger.read(small)


def test_a_file_of_zeros_is_one_line_that_was_never_written_or_many_that_were_lost(path):
    path.write_bytes(b"\0" * 480)
    with pytest.raises(ValueError, match="480 zero bytes"):
        Ledger.read(path)
    assert Ledger.repair(path)
    assert path.read_bytes() == b""
    path.write_bytes(b"\0" * 8192)
    with pytest.raises(ValueError, match="restore it from a copy"):
        Ledger.repair(path)


def test_a_repair_that_is_killed_between_its_two_writes_is_repaired_again(small, monkeypatch):
    content = small.read_bytes()
    small.write_bytes(content[:-1] + b"\0" * 64)

    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", killed)
        with pytest.raises(KeyboardInterrupt):
            Ledger.repair(small)
    assert small.read_bytes() == content[:-1]
    assert Ledger.repair(small)
    assert small.read_bytes() == content
