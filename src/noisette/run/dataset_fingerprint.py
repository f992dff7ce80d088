"""A keyed fingerprint by which a resumed run recognises its data set.

With a plain digest of the records, anyone who knows all but one of them could test guesses for the last. This digest is
keyed. Its file lies beside the checkpoint with mode 0600 while the run is unfinished, and is never published.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from noisette.accounting import atomic_files

_FILE = "fingerprint.json"
_KEY_BYTES = 32
_SAMPLED = 64  # records that are read of a data set that can only be read record by record
_AT_ONCE = 2**24  # elements


@runtime_checkable
class DerivedDataset(Protocol):
    """A data set that was computed from records, and is recognised by them."""

    @property
    def known_by(self) -> Any:
        """The records."""
        ...


@dataclass(frozen=True)
class Fingerprint:
    """The keyed digest of a data set.

    Tensors and arrays, alone or in a tuple, a list, a dictionary or a ``TensorDataset``, are digested to the last
    byte. Of any other data set the length and some records, chosen by the key, are digested; of one that returns
    different values each time, as with random augmentation, only the length.

    Source: HMAC-SHA256, RFC 2104.

    >>> first = Fingerprint.of(np.arange(3))
    >>> first.fits(np.arange(3)), first.fits(np.arange(4))
    (True, False)
    """

    key: bytes = field(repr=False)
    digest: bytes = field(repr=False)

    @classmethod
    def of(cls, dataset: Any, users: np.ndarray | None = None) -> Self:
        """The fingerprint of a data set, and of its users if they are given, under a fresh key."""
        key = os.urandom(_KEY_BYTES)
        return cls(key, _digest_with_users(key, dataset, users))

    def fits(self, dataset: Any, users: np.ndarray | None = None) -> bool:
        """Whether the fingerprint of this data set, and of its users if they are given, is the same."""
        return hmac.compare_digest(self.digest, _digest_with_users(self.key, dataset, users))

    def write(self, folder: Path) -> None:
        """Write it to a folder, readable by its owner only."""
        atomic_files.write(folder / _FILE, json.dumps(self.facts()).encode() + b"\n", mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The fingerprint in a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it was truncated or altered.
        """
        path = folder / _FILE
        try:
            found = cls.told(json.loads(path.read_bytes()))
        except (ValueError, KeyError, TypeError):
            found = None
        if found is None or len(found.key) != _KEY_BYTES:
            raise ValueError(f"{path} was cut or altered; restore it from a copy")
        return found

    def facts(self) -> dict[str, str]:
        """The fingerprint as plain values; the key is for trusted processes alone."""
        return {"key": self.key.hex(), "digest": self.digest.hex()}

    @classmethod
    def told(cls, facts: Mapping[str, str]) -> Self:
        """The fingerprint with these :meth:`facts`."""
        return cls(bytes.fromhex(facts["key"]), bytes.fromhex(facts["digest"]))

    @staticmethod
    def remove(folder: Path) -> None:
        """Delete the one in a folder, if there is one."""
        (folder / _FILE).unlink(missing_ok=True)


def _digest_with_users(key: bytes, dataset: Any, users: np.ndarray | None) -> bytes:
    digest = _digest(key, dataset)
    return digest if users is None else _mac(key, b"users", digest, _digest_of_value(key, users))


def _digest(key: bytes, dataset: Any) -> bytes:
    if isinstance(dataset, DerivedDataset):
        dataset = dataset.known_by
    if isinstance(dataset, TensorDataset):
        dataset = dataset.tensors
    if _in_memory(dataset):
        return _digest_of_value(key, dataset)
    # The remainder is not exactly uniform over the records, which does not matter here.
    chosen = [int.from_bytes(_mac(key, b"record %d" % i)) % len(dataset) for i in range(_SAMPLED) if len(dataset)]
    records, again = ([_digest_of_value(key, dataset[index]) for index in chosen] for _ in range(2))
    return _mac(key, b"records %d" % len(dataset), *(records if records == again else [b"vary"]))


def _in_memory(dataset: Any) -> bool:
    return isinstance(dataset, Tensor | np.ndarray | Mapping) or (
        isinstance(dataset, tuple | list) and all(isinstance(column, Tensor | np.ndarray) for column in dataset)
    )


def _mac(key: bytes, *parts: bytes) -> bytes:
    mac = hmac.new(key, digestmod="sha256")
    for part in parts:
        mac.update(b"%d:" % len(part))  # so that no two lists of parts give the same bytes
        mac.update(part)
    return mac.digest()


def _digest_of_value(key: bytes, value: Any) -> bytes:
    """The keyed digest of a value: type, shape, dtype and bytes."""
    match value:
        case Tensor():
            shape = f"{value.dtype} {tuple(value.shape)}"
            return _mac(key, b"tensor", shape.encode(), _digest_of_bytes(key, value.detach().reshape(-1)))
        case np.ndarray():
            shape = f"{value.dtype.str} {value.shape}"
            return _mac(key, b"array", shape.encode(), _digest_of_bytes(key, value.reshape(-1)))
        case Mapping():
            items = [_mac(key, repr(name).encode(), _digest_of_value(key, item)) for name, item in value.items()]
            return _mac(key, b"mapping", *items)
        case tuple() | list():
            return _mac(key, b"sequence", *(_digest_of_value(key, item) for item in value))
        case bytes():
            return _mac(key, b"bytes", value)
        case None | bool() | int() | float() | str() | np.generic():
            return _mac(key, b"plain", repr(value).encode())
        case _:
            return _mac(key, b"other", type(value).__name__.encode())


def _digest_of_bytes(key: bytes, flat: Tensor | np.ndarray) -> bytes:
    mac = hmac.new(key, digestmod="sha256")
    for start in range(0, len(flat), _AT_ONCE):
        part = flat[start : start + _AT_ONCE]
        mac.update((part.cpu().view(torch.uint8).numpy() if isinstance(part, Tensor) else part).tobytes())
    return mac.digest()
