"""A ledger does not grow with every step: its end is put together in a few lines, whatever goes wrong meanwhile."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from noisette.accounting import Gaussian, Ledger
from noisette.accounting.ledger_file import End, Entry, Kind, Series, Tail
from noisette.errors import PrivacyError
from small_ledger import EVENT, lines, steps

OTHER = Gaussian(7.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisette.accounting.ledger_file.MOST_LINES", 8)


@pytest.mark.usefixtures("_short")
def test_the_file_is_bounded_and_the_totals_are_those_of_all_lines(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.charge(OTHER, 3)
        for _ in range(40):
            steps(ledger, 10)
            ledger.release()
            ledger.charge(OTHER)
        totals, head = ledger.tallies, ledger.head
    assert lines(path) < 41 + 30, "each charge is a declaration, so it keeps its line"
    read = Ledger.read(path)
    assert (read.tallies, read.events) == (totals, {EVENT: 400, OTHER: 43})
    assert (read.committed, read.head) == (400, head)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.usefixtures("_short")
def test_a_line_whose_digest_was_asked_for_stays(path: Path) -> None:
    heads = []
    with Ledger(path) as ledger:
        for _ in range(30):
            steps(ledger, 20)
            heads.append(ledger.head)
        assert all(map(ledger.holds, heads))
        assert not ledger.holds("0" * 64)
    assert all(map(Ledger.read(path).holds, heads))
    before, beside = path.read_bytes(), path.with_name("ledger.jsonl.unfinished")
    beside.write_bytes(b"half a line, of a crash")
    with Ledger(path) as again:
        assert not beside.exists()
        steps(again, 100)
        assert all(map(again.holds, heads))
    assert path.read_bytes().startswith(before), "lines of an earlier process stay"


def test_it_is_short_before_its_end_is_named(path: Path) -> None:
    with Ledger(path) as ledger:
        for _ in range(5):
            steps(ledger, 100)
            ledger.shorten()
            assert ledger.holds(ledger.head)
        assert ledger.events == {EVENT: 500}
    assert (lines(path), Ledger.read(path).committed) == (10, 500)
    with pytest.raises(PrivacyError, match="closed"):
        steps(ledger, 1)


def test_reservations_come_first() -> None:
    """So that a file which ends anywhere in the lines counts no less than the lines say by then."""
    tail, end = Tail(), End()
    for kind, event, number in ((Kind.COMMIT, EVENT, 2), (Kind.RESERVE, EVENT, 3), (Kind.CHARGE, OTHER, 1)):
        entry = Entry(kind, "mine", Series(event), number)
        end = entry.line(end)[1]
        tail.add(entry, end)
    content, shorter, _ = tail.shortened("mine")
    assert [line.split(b'"kind": "')[1][:6] for line in content.splitlines()] == [b"reserv", b"commit", b"charge"]
    assert len(shorter.heads) == 3


@pytest.mark.usefixtures("_short")
def test_without_room_for_the_shorter_file_the_long_one_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "disk full")

    monkeypatch.setattr(os, "replace", refuse)
    with Ledger(path) as ledger:
        steps(ledger, 40)
    assert (lines(path), os.listdir(path.parent)) == (50, [path.name])


@pytest.mark.usefixtures("_short")
def test_a_file_that_may_or_may_not_have_its_name_is_written_no_more(path, monkeypatch) -> None:
    """A reservation in a file that a crash would take back is none."""
    from noisette.accounting import atomic_files

    sync = atomic_files.sync

    def fail_for_folders(place: Path) -> None:
        if place.is_dir() and lines(path) < 8:
            raise OSError(errno.EIO, "no disk")
        sync(place)

    with Ledger(path) as ledger:
        steps(ledger, 8)
        monkeypatch.setattr(atomic_files, "sync", fail_for_folders)
        with pytest.raises(OSError, match="no disk"):
            steps(ledger, 8)
        with pytest.raises(PrivacyError, match="closed"):
            ledger.reserve(EVENT, 1)
    assert Ledger.read(path).events == {EVENT: 8}


KILLED = """
import os, signal, sys
from pathlib import Path
from noisette.accounting import Ledger, PoissonGaussian
from noisette.accounting import ledger_file

ledger_file.MOST_LINES = 8
os.fsync = lambda descriptor: None
EVENT = PoissonGaussian(0.01, 1.1)

def run(folder):
    file = os.open(folder / "calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Ledger(folder / "ledger.jsonl") as ledger:
        for step in range(14):
            if step % 2 == 0:
                ledger.reserve(EVENT, 2)
            os.write(file, b"c")
            ledger.commit()

def die_at(number):
    left = number
    def trace(frame, event, _):
        nonlocal left
        if not any(name in frame.f_code.co_filename for name in ("accounting/ledger", "atomic_files")):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)

for number in range(0, 10**6, int(sys.argv[2])):
    folder = Path(sys.argv[1], str(number))
    folder.mkdir()
    child = os.fork()
    if child == 0:
        try:
            die_at(number)
            run(folder)
        finally:
            os._exit(0)
    if os.waitpid(child, 0)[1] == 0:
        break
"""


@pytest.mark.parametrize("stride", [41, pytest.param(7, marks=pytest.mark.slow)])
def test_a_kill_at_any_line_never_hides_a_step(tmp_path: Path, stride: int) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), str(stride)], check=True)
    shortened, folders = 0, sorted(tmp_path.iterdir())
    for folder in folders:
        calls = (folder / "calls").stat().st_size if (folder / "calls").exists() else 0
        path = folder / "ledger.jsonl"
        if not path.exists():
            assert calls == 0
            continue
        Ledger.repair(path)
        assert calls <= sum(Ledger.read(path).events.values()) <= calls + 2
        shortened += lines(path) < calls
        with Ledger(path) as ledger:
            ledger.reserve(EVENT, 1)
        assert {entry.name for entry in folder.iterdir()} == {"calls", "ledger.jsonl"}
    assert len(folders) > 300 / stride
    assert shortened > 30 / stride
