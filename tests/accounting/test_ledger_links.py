"""A ledger with several names is one ledger: through symbolic links, hard links, and while it is replaced."""

import os
from pathlib import Path

import pytest

from noisette.accounting import Ledger
from noisette.accounting import ledger_file as ledger_file
from noisette.errors import PrivacyError
from small_ledger import EVENT, lines, steps


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr("noisette.accounting.ledger_file.MOST_LINES", 8)


@pytest.fixture
def real(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data" / "ledger.jsonl"


def link_to(real: Path, kind: str) -> Path:
    link = real.parent.parent / "link.jsonl"
    match kind:
        case "symbolic":
            link.symlink_to(real)
        case "relative":
            link.symlink_to(Path("data", "ledger.jsonl"))
        case "link to a link":
            (link.parent / "between").symlink_to(real)
            link.symlink_to("between")
        case "folder":
            (link.parent / "folder").symlink_to(real.parent)
            return link.parent / "folder" / "ledger.jsonl"
        case "hard":
            real.touch()
            link.hardlink_to(real)
    return link


@pytest.mark.parametrize("kind", ["symbolic", "relative", "link to a link", "folder", "hard"])
def test_every_name_shows_every_step_also_after_shortening(real, kind):
    link = link_to(real, kind)  # of a file that does not exist yet, unless the link is hard
    for one, other in ((link, real), (real, link)):
        with Ledger(one) as ledger:
            steps(ledger, 100)
            with pytest.raises(PrivacyError, match="open for writing elsewhere"):
                Ledger(other)
        assert Ledger.read(real).events == Ledger.read(link).events
    with Ledger(link) as ledger:
        assert ledger.events == {EVENT: 200}
        ledger.shorten()
    assert os.path.samefile(link, real)
    assert link.is_symlink() or kind in ("folder", "hard")
    assert (lines(real) > 200) == (kind == "hard"), "a file with two names is never replaced"
    assert os.listdir(real.parent) == ["ledger.jsonl"]


def test_a_hard_link_that_is_made_while_the_ledger_is_open_shows_every_step(real, tmp_path):
    with Ledger(real) as ledger:
        steps(ledger, 40)
        (tmp_path / "later").hardlink_to(real)
        steps(ledger, 40)
        assert Ledger.read(tmp_path / "later").events == {EVENT: 80}
        (tmp_path / "later").unlink()
        steps(ledger, 40)
    assert lines(real) < 40, "with one name again it is shortened again"
    assert Ledger.read(real).events == {EVENT: 120}


def test_a_hard_link_that_is_made_while_the_shorter_file_is_written_keeps_the_long_one(real, tmp_path, monkeypatch):
    with Ledger(real) as ledger:
        steps(ledger, 5)
        fsync = os.fsync

        def link_first(descriptor: int) -> None:
            if not (tmp_path / "later").exists():
                (tmp_path / "later").hardlink_to(real)
            fsync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(ledger_file.os, "fsync", link_first)
            ledger.shorten()
        steps(ledger, 5)
    assert os.path.samefile(real, tmp_path / "later")
    assert Ledger.read(tmp_path / "later").committed == 10


def test_a_link_that_takes_the_place_of_an_open_ledger_is_not_replaced(real, tmp_path):
    with Ledger(real) as ledger:
        steps(ledger, 4)
        real.rename(tmp_path / "moved.jsonl")
        real.symlink_to(tmp_path / "moved.jsonl")
        steps(ledger, 40)
    assert real.is_symlink()
    assert Ledger.read(real).events == Ledger.read(tmp_path / "moved.jsonl").events == {EVENT: 44}


@pytest.mark.parametrize("copied", [False, True])
def test_a_renamed_ledger_takes_no_more_steps(copied, real, tmp_path):
    """Another run would begin a new account at the old name, and each would have the whole budget."""
    with Ledger(real) as ledger:
        steps(ledger, 4)
        real.rename(tmp_path / "old.jsonl")
        if copied:
            real.write_bytes((tmp_path / "old.jsonl").read_bytes())
        else:
            with Ledger(real) as other:
                steps(other, 1)
        with pytest.raises(PrivacyError, match="renamed or replaced"):
            steps(ledger, 1)
    assert Ledger.read(tmp_path / "old.jsonl").events == {EVENT: 4}


def test_a_moved_folder_takes_its_ledger_along(real, monkeypatch):
    monkeypatch.chdir(real.parent)
    with Ledger("ledger.jsonl") as ledger:  # by a path that is relative to the folder
        monkeypatch.chdir("/")
        steps(ledger, 4)
        moved = real.parent.rename(real.parent.parent / "moved")
        real.parent.mkdir()
        with Ledger(real) as other:
            steps(other, 1)
        steps(ledger, 80)
    assert Ledger.read(moved / real.name).events == {EVENT: 84}
    assert lines(moved / real.name) > 80, "what is not at its path is not replaced"
    assert Ledger.read(real).events == {EVENT: 4}


def test_what_is_written_is_what_the_path_names(real, monkeypatch):
    """Between opening and locking, the writer that held the file has replaced it."""
    held = Ledger(real)
    steps(held, 5)
    lock, attempts = ledger_file._lock, []

    def replace_meanwhile(descriptor: int) -> None:
        attempts.append(descriptor)
        if len(attempts) == 1:
            with monkeypatch.context() as patch:
                patch.setattr(ledger_file, "_lock", lock)
                held.shorten()
                steps(held, 3)
            held.close()
        lock(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(ledger_file, "_lock", replace_meanwhile)
        with Ledger(real) as ledger:
            assert ledger.committed == 8
            steps(ledger, 4)
    assert (len(attempts), Ledger.read(real).committed) == (2, 12)


def test_a_file_that_was_replaced_where_it_is_mounted_alone_is_refused(real, monkeypatch):
    """A mount of one file goes on showing the old one, which then has no name left."""
    with Ledger(real) as ledger:
        steps(ledger, 4)
    status = os.fstat
    nameless = lambda found: os.stat_result((*found[:3], 0, *found[4:]))  # noqa: E731
    monkeypatch.setattr(os, "fstat", lambda descriptor: nameless(status(descriptor)))
    for open_again in (Ledger, Ledger.read):
        with pytest.raises((PrivacyError, ValueError), match=r"replaced by a newer one.*mount its folder"):
            open_again(real)


def test_a_device_or_a_pipe_is_no_ledger(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for open_it in (Ledger, Ledger.read, Ledger.repair):
        with pytest.raises(IsADirectoryError, match=r"a folder; give the ledger in it, such as .*ledger\.jsonl"):
            open_it(tmp_path)
        for place in ("/dev/full", "/dev/zero", "/dev/null", tmp_path / "pipe"):
            with pytest.raises(ValueError, match=f"{place} is a device, a pipe or a socket"):
                open_it(place)
