import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from noisette.accounting import Ledger, PoissonGaussian
from noisette.run import checkpoint as checkpoint_file
from noisette.training.run_folder import RunFolder, in_words, unfinished_runs

EVENT = PoissonGaussian(sampling_rate=0.1, noise_multiplier=1.0)
FILES = {"run.json": b"{}", "report.html": b"<p>", "privacy.txt": b"p", "model.safetensors": b"w"}


def spend(folder: RunFolder) -> None:
    with Ledger(folder.ledger, dataset="d") as ledger:
        ledger.reserve(EVENT, 3)
        for _ in range(3):
            ledger.commit()


def fail_after(action: Callable[[RunFolder], None], parent: Path) -> ZeroDivisionError:
    def failing(folder: RunFolder) -> None:
        action(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure, RunFolder(parent / "run") as folder:
        failing(folder)
    return failure.value


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_run_appears_whole_and_under_its_name(tmp_path):
    out = tmp_path / "runs" / "first"
    with RunFolder(out) as folder:
        spend(folder)
        assert not out.exists()
        folder.complete(FILES)
    assert names(tmp_path) == ["runs", "runs/first", *sorted(f"runs/first/{name}" for name in (*FILES, "ledger.jsonl"))]
    assert (out / "run.json").read_bytes() == b"{}"
    assert Ledger.read(out / "ledger.jsonl").events == {EVENT: 3}


def complete(parent: Path, text: bytes) -> RunFolder:
    with RunFolder(parent / "run") as folder:
        save(folder)
        spend(folder)
        folder.complete(FILES | {"run.json": text})
    return folder


def test_an_older_run_is_kept_beside_the_new_one_with_its_ledger(tmp_path):
    kept = [complete(tmp_path, text).replaced for text in (b"first", b"second", b"third")]
    assert kept == [None, tmp_path / "run.replaced-1", tmp_path / "run.replaced-2"]
    for place, text in {"run.replaced-1": b"first", "run.replaced-2": b"second", "run": b"third"}.items():
        assert (tmp_path / place / "run.json").read_bytes() == text
        assert Ledger.read(tmp_path / place / "ledger.jsonl").events == {EVENT: 3}
        assert set(names(tmp_path / place)) == {*FILES, "ledger.jsonl"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run.replaced-1", "run.replaced-2"]


@pytest.mark.parametrize("content", [{}, {"notes.txt": b"mine"}, {"run.json": b"{}", "thesis.tex": b"mine"}])
def test_a_folder_that_is_not_a_run_is_refused_and_untouched(content, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for name, text in content.items():
        (out / name).write_bytes(text)
    for place, reason in ((out, "--out"), (out / "notes.txt" / "run", "is not a folder.*choose another --out")):
        if place == out or "notes.txt" in content:
            with pytest.raises(ValueError, match=reason):
                RunFolder(place)
    with pytest.raises(ValueError, match="is not a run; choose another --out"):
        RunFolder(Path("/dev/full"))
    assert {path.name: path.read_bytes() for path in out.iterdir()} == content


def test_a_failure_without_spending_leaves_nothing(tmp_path):
    def give_back(folder: RunFolder) -> None:
        ledger = Ledger(folder.ledger, dataset="d")
        ledger.reserve(EVENT, 16)
        ledger.release()

    for number, action in enumerate((lambda folder: None, give_back, save)):
        fail_after(action, tmp_path / str(number) / "b")
    assert names(tmp_path) == []


@pytest.mark.parametrize("cut", [0, 20])
def test_a_failure_after_a_step_leaves_the_ledger_alone(cut, tmp_path):
    def spend_and_cut(folder: RunFolder) -> None:
        spend(folder)
        content = folder.ledger.read_bytes()
        folder.ledger.write_bytes(content[: len(content) - cut])

    failure = fail_after(spend_and_cut, tmp_path)
    assert names(tmp_path) == ["run.unfinished-1", "run.unfinished-1/ledger.jsonl"]
    assert "run.unfinished-1/ledger.jsonl" in failure.__notes__[0]


# Runs that are picked up again


def save(folder: RunFolder) -> None:
    folder.keep_settings({"recipe": {"model": {"name": "mlp"}}, "data_dir": None})
    (folder.checkpoint / checkpoint_file.FILE).write_bytes(b"{}")


def cut_short(parent: Path) -> tuple[RunFolder, list[str]]:
    """A run that failed after three steps, and what its failure says."""
    held: list[RunFolder] = []

    def work(folder: RunFolder) -> None:
        held.append(folder)
        save(folder)
        spend(folder)
        (folder.place / "report.html").write_bytes(b"half of it")

    notes = fail_after(work, parent).__notes__
    return held[0], notes


def test_a_saved_run_that_fails_leaves_ledger_and_checkpoint_and_says_how_to_continue_it(tmp_path):
    parent = tmp_path / "my runs"
    parent.mkdir()
    folder, notes = cut_short(parent)
    kept = ["", "/checkpoint", "/checkpoint/checkpoint.safetensors", "/checkpoint/settings.json", "/ledger.jsonl"]
    assert names(parent) == [f"run.unfinished-1{name}" for name in kept]
    assert unfinished_runs(parent / "run") == [parent / "run.unfinished-1"]
    assert folder.checkpoint.stat().st_mode & 0o777 == 0o700
    assert notes[0].endswith("run.unfinished-1/ledger.jsonl")
    assert notes[1].endswith(f"noisette train --resume '{parent}/run.unfinished-1'")
    assert in_words(*unfinished_runs(parent / "run")).endswith("/my runs/run.unfinished-1'")
    before = names(parent)
    with pytest.raises(ZeroDivisionError) as failure, RunFolder.unfinished(parent / "run"):
        raise ZeroDivisionError
    assert names(parent) == before, "a failure of what was picked up changes nothing"
    assert "--resume" in failure.value.__notes__[1]


@pytest.mark.parametrize("name", ["run", "run.unfinished-1"])
def test_a_run_that_was_cut_short_is_picked_up_and_made_whole(name, tmp_path):
    cut_short(tmp_path)
    with RunFolder.unfinished(tmp_path / name) as folder:
        assert folder.settings == {"recipe": {"model": {"name": "mlp"}}, "data_dir": None}
        assert folder.ledger.is_file()
        assert folder.out == tmp_path / "run"
        folder.complete(FILES)
    assert names(tmp_path) == ["run", *sorted(f"run/{name}" for name in (*FILES, "ledger.jsonl"))]


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_failed_exchange_puts_everything_back(refused, tmp_path, monkeypatch):
    """The checkpoint too, so that the run can be made whole another time; and it is never in the finished folder."""
    complete(tmp_path, b"older")
    cut_short(tmp_path)
    before = names(tmp_path)
    rename, renames = os.replace, []

    def fail_once(source: Path, target: Path) -> None:
        if source.name.endswith(".unfinished"):  # files of their own are written whole
            return rename(source, target)
        renames.append(source)
        if len(renames) == refused:
            raise OSError(errno.EIO, "broken")
        return rename(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fail_once)
        with pytest.raises(OSError, match="broken"), RunFolder.unfinished(tmp_path / "run") as folder:
            folder.complete(FILES | {"run.json": b"third"})
    assert (tmp_path / "run" / "run.json").read_bytes() == b"older"
    assert set(names(tmp_path)) >= set(before)
    assert not (tmp_path / "run" / "checkpoint").exists()
    with RunFolder.unfinished(tmp_path / "run") as folder:
        folder.complete(FILES | {"run.json": b"third"})
    assert (tmp_path / "run" / "run.json").read_bytes() == b"third"
    assert (tmp_path / "run.replaced-1" / "run.json").read_bytes() == b"older"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "run.replaced-1"}


def test_which_run_to_pick_up_must_be_clear(tmp_path):
    with pytest.raises(ValueError, match="there is no such run"):
        RunFolder.unfinished(tmp_path / "run")
    with pytest.raises(ValueError, match="holds no checkpoint"):
        RunFolder.unfinished(tmp_path / "run.unfinished-1")
    test_a_run_appears_whole_and_under_its_name(tmp_path)
    with pytest.raises(ValueError, match="it is finished"):
        RunFolder.unfinished(tmp_path / "runs" / "first")
    cut_short(tmp_path)
    cut_short(tmp_path)
    with pytest.raises(ValueError, match=r"name one of .*run\.unfinished-1, .*run\.unfinished-2"):
        RunFolder.unfinished(tmp_path / "run")
    assert RunFolder.unfinished(tmp_path / "run.unfinished-2").place == tmp_path / "run.unfinished-2"


def test_other_runs_and_what_was_never_saved_are_not_picked_up(tmp_path):
    fail_after(spend, tmp_path)
    (tmp_path / "run2.unfinished-1" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run2.unfinished-1" / "checkpoint" / checkpoint_file.FILE).write_text("{}")
    (tmp_path / "run.unfinished-2" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run.unfinished-2" / "checkpoint" / "settings.json").write_text("{}")
    (spent,) = unfinished_runs(tmp_path / "run")
    assert spent == tmp_path / "run.unfinished-1"
    assert "cannot be continued" in in_words(spent)
    with pytest.raises(ValueError, match=r"no checkpoint to continue from.*noisette ledger show"):
        RunFolder.unfinished(tmp_path / "run")
    assert unfinished_runs(tmp_path / "no such folder" / "run") == []


def test_settings_that_were_cut_are_refused(tmp_path):
    cut_short(tmp_path)
    path = tmp_path / "run.unfinished-1" / "checkpoint" / "settings.json"
    for content in (b"", b'{"recipe"', b"3", "a pipe"):
        path.unlink()
        os.mkfifo(path) if content == "a pipe" else path.write_bytes(content)
        with pytest.raises(ValueError, match=r"settings\.json was cut or altered"):
            _ = RunFolder.unfinished(tmp_path / "run").settings


def test_files_that_others_put_in_the_place_meanwhile_stay(tmp_path):
    complete(tmp_path, b"older")

    def work(folder: RunFolder) -> None:
        save(folder)
        (tmp_path / "run" / "my-notes.txt").write_text("mine")
        spend(folder)
        folder.complete(FILES)

    with pytest.raises(ValueError, match=r"such as my-notes\.txt"), RunFolder(tmp_path / "run") as folder:
        work(folder)
    assert (tmp_path / "run" / "my-notes.txt").read_text() == "mine"
    assert unfinished_runs(tmp_path / "run") == [tmp_path / "run.unfinished-1"]


@pytest.mark.parametrize("moves", [0, 1, 2])
def test_a_kill_within_the_exchange_loses_no_finished_run(moves, tmp_path, monkeypatch):
    """After a kill the run can be continued, or it is complete under its name."""
    complete(tmp_path, b"older")
    replace, left = os.replace, iter(range(moves))

    class Killed(BaseException):
        pass

    def killed(source: Path, target: Path) -> None:
        if Path(source).is_dir() and next(left, None) is None:
            monkeypatch.setattr(os, "replace", lambda *_: None)  # nothing is put back by who was killed
            monkeypatch.setattr(Path, "rmdir", lambda _: None)
            raise Killed
        replace(source, target)

    folder = RunFolder(tmp_path / "run").__enter__()  # who is killed leaves no block
    save(folder)
    spend(folder)
    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(Killed):
        folder.complete({**FILES, "run.json": b"new"})
    monkeypatch.undo()
    whole = (tmp_path / "run" / "run.json").is_file() and (tmp_path / "run" / "run.json").read_bytes() == b"new"
    assert whole == (moves == 2)
    older = [*tmp_path.glob("run/run.json"), *tmp_path.glob("run.replaced-1/run.json")]
    assert b"older" in {path.read_bytes() for path in older}, "the older run is there"
    assert whole or RunFolder.unfinished(tmp_path / "run").ledger.is_file()
