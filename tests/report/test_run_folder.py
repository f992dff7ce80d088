from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from noisette.accounting import Ledger, PoissonGaussian
from noisette.report import RunFolder

EVENT = PoissonGaussian(sampling_rate=0.1, noise_multiplier=1.0)
FILES = {"run.json": b"{}", "report.html": b"<p>", "privacy.txt": b"p", "model.safetensors": b"w"}


def spend(folder: RunFolder) -> None:
    ledger = Ledger(folder.ledger, dataset="d")
    ledger.reserve(EVENT, 3)
    for _ in range(3):
        ledger.commit()


def spend_and_complete(folder: RunFolder, files: dict[str, bytes]) -> None:
    spend(folder)
    folder.complete(files)


def fail_after(action: Callable[[RunFolder], None], parent: Path) -> ZeroDivisionError:
    def work() -> None:
        with RunFolder(parent / "run") as folder:
            action(folder)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure:
        work()
    return failure.value


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@contextmanager
def full_disk(after: int) -> Iterator[None]:
    """No file may grow beyond this many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_run_appears_whole_and_under_its_name(tmp_path: Path) -> None:
    out = tmp_path / "runs" / "first"
    with RunFolder(out) as folder:
        spend(folder)
        assert not out.exists()
        folder.complete(FILES)
    assert names(tmp_path) == ["runs", "runs/first", *sorted(f"runs/first/{name}" for name in (*FILES, "ledger.jsonl"))]
    assert (out / "run.json").read_bytes() == b"{}"
    assert Ledger.read(out / "ledger.jsonl").events == {EVENT: 3}


def test_an_older_run_is_replaced(tmp_path: Path) -> None:
    for text in (b"old", b"new"):
        with RunFolder(tmp_path / "run") as folder:
            spend(folder)
            folder.complete(FILES | {"run.json": text})
    assert (tmp_path / "run" / "run.json").read_bytes() == b"new"
    assert names(tmp_path) == ["run", *sorted(f"run/{name}" for name in (*FILES, "ledger.jsonl"))]


@pytest.mark.parametrize("content", [{}, {"notes.txt": b"mine"}, {"run.json": b"{}", "thesis.tex": b"mine"}])
def test_a_folder_that_is_not_a_run_is_refused_and_untouched(content: dict[str, bytes], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name, text in content.items():
        (out / name).write_bytes(text)
    with pytest.raises(ValueError, match="--out"):
        RunFolder(out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == content


def test_a_file_in_the_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ValueError, match="is not a run"):
        RunFolder(tmp_path / "out")


def test_a_failure_before_the_first_step_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunFolder(tmp_path / "a" / "b" / "run"):
        raise ZeroDivisionError
    assert names(tmp_path) == []


def test_steps_given_back_leave_nothing(tmp_path: Path) -> None:
    def give_back(folder: RunFolder) -> None:
        ledger = Ledger(folder.ledger, dataset="d")
        ledger.reserve(EVENT, 16)
        ledger.release()

    fail_after(give_back, tmp_path)
    assert names(tmp_path) == []


def test_a_failure_after_a_step_leaves_the_ledger_alone(tmp_path: Path) -> None:
    failure = fail_after(spend, tmp_path)
    assert names(tmp_path) == ["run.unfinished-1", "run.unfinished-1/ledger.jsonl"]
    assert Ledger.read(tmp_path / "run.unfinished-1" / "ledger.jsonl").events == {EVENT: 3}
    assert "run.unfinished-1/ledger.jsonl" in failure.__notes__[0]


def test_a_ledger_that_was_cut_is_kept(tmp_path: Path) -> None:
    def spend_and_cut(folder: RunFolder) -> None:
        spend(folder)
        folder.ledger.write_bytes(folder.ledger.read_bytes()[:-20])

    fail_after(spend_and_cut, tmp_path)
    assert names(tmp_path) == ["run.unfinished-1", "run.unfinished-1/ledger.jsonl"]


def test_an_unfinished_run_is_no_obstacle_and_stays(tmp_path: Path) -> None:
    test_a_failure_after_a_step_leaves_the_ledger_alone(tmp_path)
    with RunFolder(tmp_path / "run") as folder:
        spend(folder)
        folder.complete(FILES)
    assert (tmp_path / "run.unfinished-1" / "ledger.jsonl").exists()
    assert (tmp_path / "run" / "run.json").exists()


def test_a_full_disk_leaves_the_older_run_and_the_ledger(tmp_path: Path) -> None:
    test_a_run_appears_whole_and_under_its_name(tmp_path)
    out = tmp_path / "runs" / "first"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with full_disk(after=5000), pytest.raises(OSError) as failure, RunFolder(out) as folder:
        spend_and_complete(folder, FILES | {"model.safetensors": bytes(10_000)})
    assert failure.value.errno == errno.EFBIG
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert names(out.parent / "first.unfinished-1") == ["ledger.jsonl"]


@pytest.mark.parametrize("refused", [1, 2])
def test_a_failed_exchange_puts_the_older_run_back(
    refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test_an_older_run_is_replaced(tmp_path)
    rename, renames = os.replace, []

    def fail_once(source: Path, target: Path) -> None:
        renames.append(source)
        if len(renames) == refused:
            raise OSError(errno.EIO, "broken")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fail_once)
    with pytest.raises(OSError, match="broken"), RunFolder(tmp_path / "run") as folder:
        folder.complete(FILES | {"run.json": b"third"})
    assert (tmp_path / "run" / "run.json").read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {"run"}
