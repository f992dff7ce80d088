"""The files of a checkpoint: what they hold comes back whole, or not at all."""

from __future__ import annotations

import json
import math
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from noisette.accounting import atomic_files
from noisette.run import checkpoint as checkpoint_file

CONTENT: dict[str, Any] = {
    "numbers": [1, -2.5, 1e-300, math.inf, True, None, 2**70],
    "text": 'a "quoted" line\nand ünïcode \U0001f330',
    "by place": {0: {"step": torch.tensor(3.0)}, 10: "ten", "0": "another zero"},
    "tensors": {
        **{str(kind): torch.arange(6).to(kind).reshape(2, 3) for kind in (torch.float64, torch.bfloat16, torch.int64)},
        "none": torch.zeros(0, 4),
        "mask": torch.tensor([True, False]),
    },
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b and type(a) is type(b)


def reseal(folder: Path, **changes: Any) -> None:
    """What someone would write who knows how the seal is made."""
    path = folder / checkpoint_file.FILE
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        facts = json.loads(file.metadata()["noisette"]) | changes
    facts["sha256"] = checkpoint_file._digest_of(facts["format"], facts["content"], tensors)
    save_file(tensors, path, metadata={"noisette": json.dumps(facts)})


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    checkpoint_file.write(tmp_path / "a" / "b", CONTENT)
    assert same(checkpoint_file.read(tmp_path / "a" / "b"), CONTENT)


def test_tensors_that_share_memory_or_lie_askew_come_back(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    checkpoint_file.write(tmp_path, {"whole": whole, "again": whole, "row": whole[1], "turned": whole.T})
    kept = checkpoint_file.read(tmp_path)
    assert torch.equal(kept["again"], whole)
    assert torch.equal(kept["row"], whole[1])
    assert torch.equal(kept["turned"], whole.T)


@pytest.mark.parametrize("name", ["sync", "replace"])
@pytest.mark.parametrize("failing", range(3))
def test_a_write_that_fails_anywhere_leaves_the_older_checkpoint(
    name: str, failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_file.write(tmp_path, CONTENT)
    calls = []
    owner, attribute = (atomic_files, "sync") if name == "sync" else (os, "replace")
    whole = getattr(owner, attribute)

    def fail_once(*paths: Path) -> None:
        calls.append(paths)
        if len(calls) == failing + 1:
            raise OSError(5, "broken")
        whole(*paths)

    with monkeypatch.context() as broken:
        broken.setattr(owner, attribute, fail_once)
        try:
            checkpoint_file.write(tmp_path, {"new": 1})
            failed = False
        except OSError:
            failed = True
    assert failed == (len(calls) > failing)
    kept = checkpoint_file.read(tmp_path)
    assert same(kept, CONTENT) or same(kept, {"new": 1})
    if name == "replace" and failed:
        assert same(kept, CONTENT)
    checkpoint_file.write(tmp_path, {"newest": 2})
    assert same(checkpoint_file.read(tmp_path), {"newest": 2})
    assert len(list(tmp_path.iterdir())) == 1


def test_a_byte_that_changed_is_refused(tmp_path: Path) -> None:
    checkpoint_file.write(tmp_path, CONTENT)
    path = tmp_path / checkpoint_file.FILE
    content, coins = path.read_bytes(), random.Random(4)
    for _ in range(500):
        place = coins.randrange(len(content))
        changed = bytes([content[place] ^ (1 << coins.randrange(8))])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
        with pytest.raises(ValueError, match="cut or altered"):
            checkpoint_file.read(tmp_path)
    path.write_bytes(content)
    assert same(checkpoint_file.read(tmp_path), CONTENT)


def test_a_file_that_was_cut_or_grew_is_refused(tmp_path: Path) -> None:
    checkpoint_file.write(tmp_path, CONTENT)
    path = tmp_path / checkpoint_file.FILE
    content = path.read_bytes()
    for part in (b"", content[:1], content[: len(content) // 2], content[:-1], content + b"\n", content + content):
        path.write_bytes(part)
        with pytest.raises(ValueError, match="cut or altered"):
            checkpoint_file.read(tmp_path)


@pytest.mark.parametrize("value", [print, {1, 2}, b"bytes", torch.optim.SGD, 1j], ids=str)
def test_what_cannot_be_kept_is_named_and_nothing_is_written(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=rf"extras/rule/0 is a {type(value).__name__}"):
        checkpoint_file.write(tmp_path / "new", {"extras": {"rule": [value]}})
    with pytest.raises(TypeError, match="got the key"):
        checkpoint_file.write(tmp_path / "new", {"extras": {1.5: "x"}})
    assert not (tmp_path / "new").exists()


def test_a_pickle_by_another_name_is_never_loaded(tmp_path: Path) -> None:
    (tmp_path / checkpoint_file.FILE).write_bytes(pickle.dumps(Loud()))
    with pytest.raises(ValueError, match="cut or altered"):
        checkpoint_file.read(tmp_path)


class Loud:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was loaded')",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "noisette checkpoint 1"}, "this version reads.*with the version of noisette that began it"),
        ({"content": '{"tensor": "no such"}'}, "lacks a part"),
    ],
)
def test_another_format_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    checkpoint_file.write(tmp_path, CONTENT)
    reseal(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        checkpoint_file.read(tmp_path)


def test_json_that_would_fill_the_memory_or_the_stack_is_refused(tmp_path: Path) -> None:
    checkpoint_file.write(tmp_path, CONTENT)
    path = tmp_path / checkpoint_file.FILE
    content = path.read_bytes()
    path.write_bytes((2**50).to_bytes(8, "little") + content[8:])  # a header of a petabyte
    with pytest.raises(ValueError, match="cut or altered"):
        checkpoint_file.read(tmp_path)
    path.write_bytes(content)
    reseal(tmp_path, content="[" * 100_000)
    with pytest.raises(ValueError, match="lacks a part"):
        checkpoint_file.read(tmp_path)


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        checkpoint_file.write(tmp_path, CONTENT)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in tmp_path.iterdir()] == [0o600]


def test_a_full_disk_is_an_error_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors import SafetensorError

    def fail(*_: object, metadata: object) -> None:
        raise SafetensorError("no space left")

    monkeypatch.setattr(checkpoint_file, "save_file", fail)
    with pytest.raises(OSError, match="no space left"):
        checkpoint_file.write(tmp_path, CONTENT)
    assert list(tmp_path.iterdir()) == []
