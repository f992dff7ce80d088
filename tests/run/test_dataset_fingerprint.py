"""The fingerprint of a data set: it knows the records again, and shows nobody else what they are."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from noisette.run.checkpoint import Fingerprint

X, Y = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32), np.arange(50)


class Records(Dataset):
    """Records that can only be had one by one."""

    def __init__(self, values: np.ndarray, noise: float = 0.0) -> None:
        self.values, self.noise = values, noise

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> dict[str, Any]:
        value = self.values[index] + self.noise * np.random.default_rng().normal()
        return {"x": torch.as_tensor(value), "name": f"record {index}", "more": (1, None, b"b")}


def changed(values: np.ndarray, *place: int) -> np.ndarray:
    copy = values.copy()
    copy[place] = copy[place] + 1
    return copy


SAME = {
    "array": lambda: X,
    "tensor": lambda: torch.as_tensor(X),
    "pair": lambda: (X, Y),
    "tensor data set": lambda: TensorDataset(torch.as_tensor(X), torch.as_tensor(Y)),
    "columns": lambda: {"x": X, "y": torch.as_tensor(Y)},
    "nothing": lambda: X[:0],
    "records": lambda: Records(X),
    "random records": lambda: Records(X, noise=1.0),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_the_same_records_are_known_again(make: Any, tmp_path: Path) -> None:
    Fingerprint.of(make()).write(tmp_path)
    assert Fingerprint.read(tmp_path).fits(make())


OTHER = {
    "last byte": (X, changed(X, 49, 2)),
    "order": (X, X[::-1]),
    "fewer": (X, X[:-1]),
    "type": (X, X.view(np.int32)),
    "labels": ((X, Y), (X, changed(Y, 7))),
    "columns": ({"x": X, "y": Y}, {"x": X, "z": Y}),
    "records": (Records(X), Records(X + 1)),
    "fewer random records": (Records(X, noise=1.0), Records(X[:-1], noise=1.0)),
}


@pytest.mark.parametrize(("mine", "other"), OTHER.values(), ids=OTHER)
def test_other_records_are_not(mine: Any, other: Any) -> None:
    known = Fingerprint.of(mine)
    assert known.fits(mine)
    assert not known.fits(other)


def test_what_is_computed_from_records_is_known_by_them() -> None:
    class Features(TensorDataset):
        known_by = (X, Y)

    assert Fingerprint.of(Features(torch.zeros(50))).fits(Features(torch.ones(50)))


def test_two_fingerprints_of_the_same_records_have_nothing_in_common() -> None:
    """A digest without a key would tell anyone who can guess the records that the guess is right."""
    first, second = Fingerprint.of(X), Fingerprint.of(X)
    assert first.key != second.key
    assert first.digest != second.digest
    plain = {hashlib.new(name, X.tobytes()).hexdigest() for name in ("sha256", "blake2s", "md5")}
    assert first.digest not in plain
    assert first.key not in repr(first)
    assert first.digest not in repr(first)


def test_only_the_owner_may_read_it_and_it_goes_without_a_trace(tmp_path: Path) -> None:
    Fingerprint.of(X).write(tmp_path)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    Fingerprint.remove(tmp_path)
    Fingerprint.remove(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1]", b'{"key": "00", "digest": "00"}', json.dumps({"key": 1, "digest": 2}).encode()]
)
def test_a_file_that_was_altered_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "fingerprint.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"fingerprint\.json was cut or altered"):
        Fingerprint.read(tmp_path)
