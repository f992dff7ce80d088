"""Several runs on one ledger: each line names its run, and each run has its own steps alone."""

import hashlib
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from noisette.accounting import Gaussian, Ledger, PoissonGaussian
from noisette.accounting.ledger import RecordedRun
from noisette.accounting.ledger_file import End, Entry, Kind, Series
from noisette.errors import PrivacyError

EVENT = PoissonGaussian(0.01, 1.1)


def test_each_line_names_its_run_after_its_steps(path):
    run = RecordedRun()
    with Ledger(path) as ledger:
        ledger.reserve(EVENT, 4, run=run)
        ledger.commit(run=run)
        ledger.release(run=run)
        ledger.charge(Gaussian(7.0))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["sequence"] for line in lines] == list(range(4))
    assert [line["kind"] for line in lines] == ["reserve", "commit", "release", "charge"]
    assert [line["steps"] for line in lines] == [4, 1, 3, 1]
    assert [line["previous"] for line in lines] == ["", *(line["digest"] for line in lines[:-1])]
    assert [line["run_id"] == run.id for line in lines] == [True, True, True, False]
    assert all(len(bytes.fromhex(line["run_id"])) == 8 for line in lines)
    assert list(lines[0])[3:7] == ["steps", "version", "run_id", "mechanism"]
    assert Ledger.read(path).paid[Series(EVENT, run.id)] == 1


def test_closing_one_run_gives_back_its_own_steps_alone(path):
    one, two = RecordedRun(), RecordedRun()
    with Ledger(path) as ledger:
        ledger.reserve(EVENT, 8, run=one)
        ledger.reserve(EVENT, 8, run=two)
        ledger.commit(EVENT, run=one)
        ledger.release(run=one)
        assert ledger.events == {EVENT: 9}
        for _ in range(8):
            ledger.commit(run=two)
        with pytest.raises(PrivacyError, match="no reserved step"):
            ledger.commit(run=two)
        with pytest.raises(PrivacyError, match="no reserved step"):
            ledger.commit(run=one)
        ledger.release(run=two)
    assert (Ledger.read(path).events, Ledger.read(path).committed) == ({EVENT: 9}, 9)


def test_two_objects_of_one_run_each_give_back_what_they_reserved(path):
    """A run that went on beside the object that it was resumed from."""
    older, newer = RecordedRun("same"), RecordedRun("same")
    with Ledger(path) as ledger:
        ledger.reserve(EVENT, 3, run=older)
        ledger.reserve(EVENT, 5, run=newer)
        ledger.release(run=older)
        for _ in range(5):
            ledger.commit(run=newer)
        ledger.release(run=newer)
    assert Ledger.read(path).events == {EVENT: 5}


def sealed(*lines: tuple[Kind, str, int | None, int]) -> bytes:
    content, end = b"", End()
    for kind, run, dimensions, steps in lines:
        line, end = Entry(kind, "digits", Series(EVENT, run, dimensions), steps).line(end)
        content += line
    return content


def test_more_commits_than_reservations_are_refused_though_the_digests_fit(path):
    reserve, commit, release = (Kind.RESERVE, "", None, 3), (Kind.COMMIT, "", None, 1), (Kind.RELEASE, "", None, 3)
    path.write_bytes(sealed(reserve, commit, release))
    with pytest.raises(ValueError, match=r"line 3: .*more than the 3 reserved"):
        Ledger.read(path)
    path.write_bytes(sealed(reserve, release))
    assert Ledger.read(path).events == {}, "without its commit line the released step would be free"


@pytest.mark.parametrize("kind", [Kind.RELEASE, Kind.COMMIT])
def test_a_run_that_gives_back_the_steps_of_another_is_refused(path, kind):
    lines = [(Kind.RESERVE, "a", 5, 8), (Kind.RESERVE, "b", 5, 2)]
    path.write_bytes(sealed(*lines, (kind, "b", 5, 2)))
    assert Ledger.read(path).entries == 3
    for run, dimensions in (("b", 5), ("c", 5), ("", 5), ("a", None), ("a", 6)):
        path.write_bytes(sealed(*lines, (kind, run, dimensions, 3)))
        with pytest.raises(ValueError, match=r"line 3: 3? ?.*more than the"):
            Ledger.read(path)


@pytest.mark.parametrize(
    "facts",
    [{"run_id": 5}, {"run_id": ""}, {"run_id": None}, {"dimensions": 0}, {"dimensions": True}, {"dimensions": "5"}],
)
def test_what_no_writer_writes_is_refused(path, facts):
    content = json.loads(sealed((Kind.RESERVE, "a", 5, 8)))
    del content["digest"]
    text = json.dumps(content | facts)
    digest = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(f'{text[:-1]}, "digest": "{digest}"}}\n')
    with pytest.raises(ValueError, match="line 1: this line was altered"):
        Ledger.read(path)


# A ledger of four lines as they were before lines named their run.


def test_an_old_ledger_is_read_exactly_and_goes_on(path):
    content = (Path(__file__).parent / "old_ledger.jsonl").read_bytes()
    assert b"run_id" not in content
    path.write_bytes(content)
    with Ledger(path, dataset="digits") as ledger:
        assert ledger.events == {EVENT: 3, Gaussian(7.0): 1}
        ledger.reserve(EVENT, 4)
        ledger.commit()
        ledger.release()
    assert path.read_bytes().startswith(content)
    assert Ledger.read(path).events == {EVENT: 4, Gaussian(7.0): 1}
    assert Ledger.read(path).paid[Series(EVENT)] == 3


@pytest.mark.parametrize("on_disk", [True, False])
def test_threads_may_share_a_ledger(path, on_disk, monkeypatch):
    monkeypatch.setattr("noisette.accounting.ledger_file.MOST_LINES", 32)
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    failures: list[BaseException] = []

    def work(ledger: Ledger, number: int) -> None:
        run = RecordedRun()
        try:
            for _ in range(25):
                ledger.reserve(EVENT, 3, run=run)
                ledger.commit(run=run)
                ledger.commit(EVENT, run=run)
                assert sum(ledger.events.values()) >= 2
                assert ledger.committed <= sum(ledger.events.values())
                ledger.release(run=run)
                ledger.charge(EVENT, run=run)
                assert ledger.holds(ledger.head)
                ledger.shorten()
        except BaseException as error:
            failures.append(error)

    with Ledger(path if on_disk else None) as ledger:
        threads = [threading.Thread(target=work, args=(ledger, number)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
    assert (ledger.events, sorted(ledger.paid.values())) == ({EVENT: 6 * 25 * 3}, [75] * 6)
    if on_disk:
        assert Ledger.read(path).paid == ledger.paid


def test_a_forked_process_does_not_wait_for_a_thread_of_its_parent():
    script = """
import os, threading, time, warnings
from noisette.accounting import Ledger
warnings.simplefilter("ignore")
ledger = Ledger()
held = threading.Event()
def hold():
    with ledger.lock:
        held.set()
        time.sleep(5)
threading.Thread(target=hold, daemon=True).start()
held.wait()
child = os.fork()
if child == 0:
    assert ledger.events == {}
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=20)
