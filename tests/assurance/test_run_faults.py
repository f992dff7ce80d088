"""What goes wrong around a run: disks, files, clocks, other processes. It is refused or borne, and nothing is free."""

import errno
import os
import shutil
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from failing_calls import FailingCall
from noisette import Ledger, PrivacyError, PrivateRun, privatize
from noisette.core.release import GaussianRelease
from small_loop import paid
from small_run import NUMBERS, STEPS, begin, go_on, parts, take_steps


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    steps: list[int] = []
    whole = GaussianRelease.__call__

    def call(self: GaussianRelease, *args: Any, step: int) -> None:
        steps.append(step)
        whole(self, *args, step=step)

    monkeypatch.setattr(GaussianRelease, "__call__", call)
    return steps


def abandon(run: PrivateRun) -> None:
    """What the end of a process does: nothing is given back, and the lock is gone."""
    run.ledger.close()
    run._detach()
    run.bound.close()


EVERY_CALL = [(name, after, 9) for name in ("write", "fsync", "replace", "open") for after in (False, True)]


@pytest.mark.parametrize(
    ("name", "after", "stride"),
    [("write", True, 40), ("fsync", False, 40), *(pytest.param(*each, marks=pytest.mark.slow) for each in EVERY_CALL)],
)
def test_a_disk_that_fails_at_any_call_leaves_what_is_paid_for_and_can_be_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: list[int], name: str, after: bool, stride: int
) -> None:
    for at in count(0, stride):
        folder = tmp_path / str(at)
        folder.mkdir()
        calls.clear()
        with monkeypatch.context() as patch:
            failing = FailingCall(name, at, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), after=after)
            patch.setattr(os, name, failing)
            with suppress(OSError):
                run = begin(folder)
                try:
                    take_steps(run, 70, save_to=folder / "saved", every=20)
                finally:
                    abandon(run)
        if (folder / "ledger.jsonl").exists():
            Ledger.repair(folder / "ledger.jsonl")
            assert len(calls) <= paid(folder) <= STEPS
        else:
            assert calls == []
        if (folder / "saved" / "checkpoint.safetensors").exists():
            run = go_on(folder)
            take_steps(run, 3)
            abandon(run)
            assert len(calls) <= paid(folder) <= STEPS
        if failing.left >= 0:
            break
    assert at > 0


def test_a_folder_that_cannot_be_written_stops_a_run_before_its_first_step(calls: list[int]) -> None:
    """Under /proc not even root may write."""
    with pytest.raises(OSError, match=r"/proc/ledger\.jsonl"):
        begin(Path("/proc"))
    with begin_in_memory() as run, pytest.raises((OSError, ValueError)):
        take_steps(run, save_to=Path("/proc/saved"))
    assert calls == []


def begin_in_memory(dataset: Any = NUMBERS, **changes: Any) -> PrivateRun:
    declared = {"sampling_rate": 0.2, "expected_batch_size": 18, "steps": 5, "noise_multiplier": 1.0, **changes}
    return privatize(*parts(), dataset, **declared)


def begun(folder: Path, steps: int = 70) -> None:
    run = begin(folder)
    take_steps(run, steps, save_to=folder / "saved", every=10)
    abandon(run)


def damaged(content: bytes, number: int) -> bytes:
    """A flipped bit, a cut or a byte too many, at a place that the number draws."""
    draw = np.random.default_rng(number)
    at = int(draw.integers(len(content)))
    match number % 3:
        case 0:
            bit = int(draw.choice([0, 1, 2, 3, 4, 6, 7]))  # 5 makes a hexadecimal letter a capital: no damage
            return content[:at] + bytes([content[at] ^ (1 << bit)]) + content[at + 1 :]
        case 1:
            return content[:at]
        case _:
            return content[:at] + b"7" + content[at:]


@pytest.mark.parametrize("which", range(3))
def test_a_damaged_file_is_refused_and_nothing_is_touched(tmp_path: Path, which: int) -> None:
    begun(tmp_path)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert len(files) == 3
    whole = {path: path.read_bytes() for path in files}
    for number in range(30):
        files[which].write_bytes(damaged(whole[files[which]], number))
        as_damaged = {path: path.read_bytes() for path in files}
        with pytest.raises((ValueError, PrivacyError), match=r"cut|altered|restore|began with|checkpoint was made"):
            go_on(tmp_path)
        assert {path: path.read_bytes() for path in files} == as_damaged
        files[which].write_bytes(whole[files[which]])
    go_on(tmp_path).close()


BAD = {"nan": float("nan"), "inf": float("inf"), "-inf": -float("inf"), "1e30": 1e30, "tiny": 1e-45}


@pytest.mark.parametrize("value", BAD.values(), ids=BAD)
def test_no_record_stops_a_run_or_spoils_its_weights(value: float) -> None:
    dataset = NUMBERS.clone()
    dataset[::3, 1] = value
    with begin_in_memory(dataset, steps=20) as run:
        take_steps(run)
    assert run.steps_taken == 20
    assert all(p.isfinite().all() for p in run.bound.model.parameters())


@pytest.mark.parametrize("steps", [300, pytest.param(10_000, marks=pytest.mark.slow)])
def test_empty_batches_are_steps_like_others(tmp_path: Path, calls: list[int], steps: int) -> None:
    with (
        Ledger(tmp_path / "ledger.jsonl") as ledger,
        begin_in_memory(sampling_rate=1e-9, steps=steps, ledger=ledger) as run,
    ):
        take_steps(run, steps)
        assert sum(ledger.events.values()) == ledger.committed == steps
    assert calls == list(range(steps))
    assert all(p.isfinite().all() for p in run.bound.model.parameters())


def test_no_records_at_all_are_a_run_like_another(calls: list[int]) -> None:
    with begin_in_memory(NUMBERS[:0]) as run:
        take_steps(run)
    assert calls == [0, 1, 2, 3, 4]


def test_a_clock_that_goes_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backwards = count(2_000_000_000, -3600)
    monkeypatch.setattr(time, "time", lambda: float(next(backwards)))
    begun(tmp_path)
    for place in (path for path in tmp_path.rglob("*") if path.is_file()):
        os.utime(place, (4_000_000_000, 4_000_000_000))
    with go_on(tmp_path) as run:
        take_steps(run)
    assert run.steps_spent == paid(tmp_path) == STEPS


def test_a_copied_folder_cannot_spend_the_same_steps_again_in_one_ledger(tmp_path: Path) -> None:
    """Two copies of one run share what they have left, if they share the ledger; each pays for itself if not."""
    (tmp_path / "one").mkdir()
    begun(tmp_path / "one")
    shutil.copytree(tmp_path / "one" / "saved", tmp_path / "two")
    with Ledger(tmp_path / "one" / "ledger.jsonl", dataset="mine") as ledger:
        with PrivateRun.resume(tmp_path / "one" / "saved", *parts(), NUMBERS, ledger=ledger) as run:
            take_steps(run, 20)
        with PrivateRun.resume(tmp_path / "two", *parts(), NUMBERS, ledger=ledger) as run:
            assert run.steps_lost == 25
            take_steps(run)
        assert sum(ledger.events.values()) == STEPS
