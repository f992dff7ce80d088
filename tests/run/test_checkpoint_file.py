"""The files of a checkpoint: what they hold comes back whole, or not at all; and the fingerprint of a data set."""

import hashlib
import json
import math
import os
import random
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from noisette.accounting import atomic_files
from noisette.run import checkpoint as checkpoint_file
from noisette.run.checkpoint import Fingerprint

WHOLE = torch.arange(12.0).reshape(3, 4)
CONTENT: dict[str, Any] = {
    "numbers": [1, -2.5, 1e-300, math.inf, True, None, 2**70],
    "text": 'a "quoted" line\nand ünïcode \U0001f330',
    "by place": {0: {"step": torch.tensor(3.0)}, 10: "ten", "0": "another zero"},
    "tensors": {
        **{str(kind): torch.arange(6).to(kind).reshape(2, 3) for kind in (torch.float64, torch.bfloat16, torch.int64)},
        "none": torch.zeros(0, 4),
        "mask": torch.tensor([True, False]),
    },
    "in one memory, askew": [WHOLE, WHOLE, WHOLE[1], WHOLE.T],
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


def test_what_is_kept_comes_back(tmp_path):
    checkpoint_file.write(tmp_path / "a" / "b", CONTENT)
    assert same(checkpoint_file.read(tmp_path / "a" / "b"), CONTENT)


CALLS = {"sync": 2, "replace": 1}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("failing", range(3))
def test_a_write_that_fails_anywhere_leaves_the_older_checkpoint(name, failing, tmp_path, monkeypatch):
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
        with pytest.raises(OSError, match="broken") if failing < CALLS[name] else nullcontext():
            checkpoint_file.write(tmp_path, {"new": 1})
    kept = checkpoint_file.read(tmp_path)
    assert same(kept, CONTENT) or (same(kept, {"new": 1}) and (name, failing) != ("replace", 0))
    checkpoint_file.write(tmp_path, {"newest": 2})
    assert same(checkpoint_file.read(tmp_path), {"newest": 2})
    assert len(list(tmp_path.iterdir())) == 1


def test_a_byte_that_changed_is_refused(tmp_path):
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


def test_a_file_that_was_cut_or_grew_is_refused(tmp_path):
    checkpoint_file.write(tmp_path, CONTENT)
    path = tmp_path / checkpoint_file.FILE
    content = path.read_bytes()
    a_petabyte = (2**50).to_bytes(8, "little") + content[8:]  # its header, which would fill the memory
    a_pickle = b"cbuiltins\nexec\n(S'raise SystemExit(1)'\ntR."
    cut = b"", content[:1], content[: len(content) // 2], content[:-1]
    for other in (*cut, content + b"\n", content + content, a_petabyte, a_pickle):
        path.write_bytes(other)
        with pytest.raises(ValueError, match="cut or altered"):
            checkpoint_file.read(tmp_path)


@pytest.mark.parametrize("value", [print, {1, 2}, b"bytes", torch.optim.SGD, 1j], ids=str)
def test_what_cannot_be_kept_is_named_and_nothing_is_written(value, tmp_path):
    with pytest.raises(TypeError, match=rf"extras/rule/0 is a {type(value).__name__}"):
        checkpoint_file.write(tmp_path / "new", {"extras": {"rule": [value]}})
    with pytest.raises(TypeError, match="got the key"):
        checkpoint_file.write(tmp_path / "new", {"extras": {1.5: "x"}})
    assert not (tmp_path / "new").exists()


def test_another_format_or_content_is_refused(tmp_path):
    checkpoint_file.write(tmp_path, CONTENT)
    for content in ('{"tensor": "no such"}', "[" * 100_000):  # the second would fill the stack
        reseal(tmp_path, content=content)
        with pytest.raises(ValueError, match="lacks a part"):
            checkpoint_file.read(tmp_path)
    reseal(tmp_path, format="noisette checkpoint 1")
    with pytest.raises(ValueError, match=r"this version reads.*with the version of noisette that began it"):
        checkpoint_file.read(tmp_path)


X, Y = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32), np.arange(50)


class Records(Dataset):
    def __init__(self, values: np.ndarray, noise: float = 0.0) -> None:
        self.values, self.noise = values, noise

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        value = self.values[index] + self.noise * np.random.default_rng().normal()
        return {"x": torch.as_tensor(value), "name": f"record {index}", "more": (1, None, b"b")}


KNOWN = {
    "tensor": lambda: torch.as_tensor(X),
    "tensor data set": lambda: TensorDataset(torch.as_tensor(X), torch.as_tensor(Y)),
    "columns": lambda: {"x": X, "y": torch.as_tensor(Y)},
    "nothing": lambda: X[:0],
    "records": lambda: Records(X),
    "random records": lambda: Records(X, noise=1.0),
}


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_the_same_records_are_known_again(make, tmp_path):
    Fingerprint.of(make()).write(tmp_path)
    assert Fingerprint.read(tmp_path).fits(make())


OTHER = {
    "last number": (X, X + (np.arange(150) == 149).reshape(50, 3)),
    "order": (X, X[::-1]),
    "type": (X, X.view(np.int32)),
    "columns": ({"x": X, "y": Y}, {"x": X, "z": Y}),
    "records": (Records(X), Records(X + 1)),
    "fewer random records": (Records(X, noise=1.0), Records(X[:-1], noise=1.0)),
}


@pytest.mark.parametrize(("mine", "other"), OTHER.values(), ids=OTHER)
def test_other_records_are_not(mine, other):
    known = Fingerprint.of(mine)
    assert known.fits(mine)
    assert not known.fits(other)


@pytest.mark.parametrize("name", [name for name in OTHER if name != "last number"])
def test_of_much_data_drawn_rows_are_digested(name, monkeypatch):
    monkeypatch.setattr(checkpoint_file, "_LARGE", 100)
    test_other_records_are_not(*OTHER[name])
    assert not Fingerprint.of(X).fits(X[:-1])


def test_a_large_file_is_not_read_to_its_end(tmp_path):
    """It has 64 GiB of which the disk holds nothing: to digest them takes a minute and more."""
    x = np.memmap(tmp_path / "x", dtype=np.float32, mode="w+", shape=(2**24, 1024))
    begun = time.process_time()
    assert Fingerprint.of((x, Y)).fits((x, Y))
    assert time.process_time() - begun < 5


def test_what_is_computed_from_records_is_known_by_them():
    class Features(TensorDataset):
        known_by = (X, Y)

    assert Fingerprint.of(Features(torch.zeros(50))).fits(Features(torch.ones(50)))


def test_two_fingerprints_of_the_same_records_have_nothing_in_common():
    """A digest without a key would tell anyone who can guess the records that the guess is right."""
    first, second = Fingerprint.of(X), Fingerprint.of(X)
    assert first.key != second.key
    assert first.digest != second.digest
    plain = {hashlib.new(name, X.tobytes()).hexdigest() for name in ("sha256", "blake2s", "md5")}
    assert first.digest not in plain
    assert first.key not in repr(first)
    assert first.digest not in repr(first)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1]", b'{"key": "00", "digest": "00"}', json.dumps({"key": 1, "digest": 2}).encode(), "a pipe"],
)
def test_a_file_that_was_altered_is_refused(content, tmp_path):
    path = tmp_path / "fingerprint.json"
    os.mkfifo(path) if content == "a pipe" else path.write_bytes(content)
    with pytest.raises(ValueError, match=r"fingerprint\.json was cut or altered"):
        Fingerprint.read(tmp_path)
