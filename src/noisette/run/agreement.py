"""What must be the same: on all ranks of a run, and in a process that resumes it.

The records are known again by a keyed digest: with a plain one, anyone who knows all but one of them could test guesses
for the last. Its file lies beside the checkpoint with mode 0600 while the run is unfinished, and is never published.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.data import TensorDataset

from noisette import __version__
from noisette.accounting import atomic_files
from noisette.core.batches import Records
from noisette.core.loss import is_sharded
from noisette.core.release import GradientBound
from noisette.errors import PrivacyError
from noisette.ranks import AnyRanks
from noisette.ranks.process_group import canonical_parameters
from noisette.run.checkpoint import digest_of_tensors, names_of_groups
from noisette.run.per_example import PerExampleClip

_FILE = "fingerprint.json"
_KEY_BYTES = 32
_SAMPLED = 64  # records that are read of a data set that can only be read record by record
_AT_ONCE = 2**24  # elements


# Declarations


def check_declared_again(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Check that what is declared now is what the run of a checkpoint began with.

    A name that only one of the two knows is not compared; ``None`` stands for what was not declared.

    Raises:
        ValueError: they differ; every difference is listed.

    >>> check_declared_again({"epsilon": 3.0, "delta": 1e-5}, {"epsilon": 1, "delta": 1e-5})
    Traceback (most recent call last):
    ValueError: the run of the checkpoint was declared otherwise, and goes on as it was declared:
      epsilon: 3.0 in the checkpoint, 1 now
    Declare the same again, or begin another run, without the checkpoint but with the same ledger for the same records
    """
    said: dict[object, str] = {None: "not declared"}
    differences = [
        f"{name}: {said.get(value, value)} in the checkpoint, {said.get(now[name], now[name])} now"
        for name, value in before.items()
        if name in now and now[name] != value
    ]
    if differences:
        raise ValueError(
            "the run of the checkpoint was declared otherwise, and goes on as it was declared:\n  "
            + "\n  ".join(differences)
            + "\nDeclare the same again, or begin another run, without the checkpoint but with the same ledger for the "
            "same records"
        )


# Model, optimizer and bound


def facts_of(bound: GradientBound, optimizer: Optimizer) -> dict[str, object]:
    """What must be equal on all ranks, by name, with digests of the weights and of the optimizer's state."""
    clipping = bound.clipping if isinstance(bound, PerExampleClip) else None
    groups = [] if clipping is None else clipping.groups(list(bound.parameters))
    return {
        "version of noisette": __version__,
        "version of torch": torch.__version__,
        "optimizer": [
            type(optimizer).__name__,
            [_plain(group) for group in optimizer.param_groups],
            names_of_groups(bound.model, optimizer),
        ],
        "state of the optimizer": _digest(tree_leaves(optimizer.state_dict()["state"])),
        "bound": [type(bound).__name__, type(clipping).__name__, dict(bound.state())],
        "clipping norms": [[part.name, part.bound, part.share] for part in bound.pop_sums()],
        "settings of the clipping rule": {} if clipping is None else _plain(vars(clipping)),
        "groups of the clipping rule": [list(group.names) for group in groups],
        **digests_of(bound.model),
    }


def digests_of(model: nn.Module) -> dict[str, object]:
    """The names and forms of a model's parameters, and digests of the values of parameters and buffers."""
    named = dict(canonical_parameters(model))
    forms = [[name, list(p.shape), str(p.dtype), p.requires_grad] for name, p in named.items()]
    return {
        "names, shapes and types of parameters": forms,
        "values of parameters": _digest(named.values()),
        "values of buffers": _digest(model.buffers()),
    }


def _digest(values: Iterable[object]) -> str:
    """Of the tensors among these values, without sharded ones, of which each rank holds a part."""
    held = (value for value in values if isinstance(value, Tensor) and not is_sharded(value))
    return digest_of_tensors(value for value in held if value.layout is torch.strided)


def _plain(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings among these attributes, as text: numbers, texts, and tensors that stand for numbers."""
    kinds = (bool, int, float, str, tuple, Tensor)
    return {name: repr(value) for name, value in settings.items() if isinstance(value, kinds)}


# Records


def check_same_records(dataset: object, records: Records, users: np.ndarray | None, ranks: AnyRanks) -> None:
    """Check that the ranks share all records in one order, as far as a fingerprint tells, or hold each record once.

    Raises:
        PrivacyError: a record could be in the parts of two ranks, or in none.
    """
    if ranks.size == 1:
        return
    own = range(0) if records.own is None else records.own
    spans = ranks.of_all("the records", {"own": records.own is not None, "first": own.start, "end": own.stop})
    if any(span["own"] for span in spans):
        held = sorted((span["first"], span["end"]) for span in spans if span["first"] < span["end"])
        ends = [0, *(end for _, end in held)]
        if not all(span["own"] for span in spans) or [first for first, _ in held] + [records.size] != ends:
            raise PrivacyError(
                "each record of OwnRecords is held by exactly one rank: give every rank OwnRecords(dataset, first=..., "
                "of=...) with the place of its first record, without overlaps or gaps"
            )
    told = ranks.from_first("the records", lambda: Fingerprint.of(dataset, users).facts())
    with ranks.unanimous("the records"):
        if not Fingerprint.told(told).fits(dataset, users):
            raise PrivacyError(
                f"rank {ranks.rank} has other records than rank 0, or the same in another order, or other users: "
                "give each rank the same data set. Where each rank holds a part of the records, give it "
                "noisette.OwnRecords(part, first=..., of=...)"
            )


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
        """The fingerprint in a folder; a ValueError if it was truncated or altered."""
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
    digest = _digest_of_dataset(key, dataset)
    return digest if users is None else _mac(key, b"users", digest, _digest_of_value(key, users))


def _digest_of_dataset(key: bytes, dataset: Any) -> bytes:
    dataset = getattr(dataset, "known_by", dataset)  # of a data set that was computed from records, these
    if isinstance(dataset, TensorDataset):
        dataset = dataset.tensors
    if isinstance(dataset, Tensor | np.ndarray | Mapping) or (
        isinstance(dataset, tuple | list) and all(isinstance(column, Tensor | np.ndarray) for column in dataset)
    ):
        return _digest_of_value(key, dataset)
    # The remainder is not exactly uniform over the records, which does not matter here.
    chosen = [int.from_bytes(_mac(key, b"record %d" % i)) % len(dataset) for i in range(_SAMPLED) if len(dataset)]
    records, again = ([_digest_of_value(key, dataset[index]) for index in chosen] for _ in range(2))
    return _mac(key, b"records %d" % len(dataset), *(records if records == again else [b"vary"]))


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
