"""A file is written completely or not at all."""

import errno
import os

import pytest

from noisette.accounting import atomic_files


def fail(*_: object) -> None:
    raise OSError(errno.EIO, "broken")


@pytest.mark.parametrize("broken", ["os.replace", "os.fsync", "os.open", "pathlib.Path.write_bytes"])
def test_a_failure_leaves_the_older_file_and_nothing_else(broken, tmp_path, monkeypatch):
    atomic_files.write(tmp_path / "a", b"older")
    monkeypatch.setattr(broken, fail)
    with pytest.raises(OSError, match="broken") as failure:
        atomic_files.write(tmp_path / "a", b"newer")
    monkeypatch.undo()
    assert (failure.value.filename, (tmp_path / "a").read_bytes()) == (str(tmp_path / "a"), b"older")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_file_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_return(tmp_path, monkeypatch):
    order: list[str] = []
    sync, replace = atomic_files.sync, os.replace
    monkeypatch.setattr(atomic_files, "sync", lambda path: order.append(f"sync {path.name}") or sync(path))
    monkeypatch.setattr(os, "replace", lambda *paths: order.append("rename") or replace(*paths))
    atomic_files.write(tmp_path / "a", b"content")
    assert order == ["sync a.unfinished", "rename", f"sync {tmp_path.name}"]


def test_the_mode_is_that_asked_for_whatever_lay_there(tmp_path):
    (tmp_path / "a.unfinished").write_bytes(b"of a process that died, for all to read")
    os.chmod(tmp_path / "a.unfinished", 0o666)
    atomic_files.write(tmp_path / "a", b"secret", mode=0o600)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_a_link_in_the_way_is_not_followed(tmp_path):
    (tmp_path / "a.unfinished").symlink_to(tmp_path / "elsewhere")
    atomic_files.write(tmp_path / "a", b"secret")
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "a").is_symlink()
