"""What a run keeps on disk and what must be the same again: in a process that resumes it, and on all of its ranks.

The records are known again by a keyed digest: with a plain one, anyone who knows all but one of them could test guesses
for the last. Its file lies beside the checkpoint while the run is unfinished, and is never published.
"""

import hashlib
import hmac
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import TensorDataset

from noisette import __version__
from noisette.accounting import Ledger, atomic_files
from noisette.accounting.budget import RunParameters
from noisette.accounting.events import in_whole_rounds
from noisette.core.batches import Records
from noisette.core.loss import is_sharded
from noisette.core.release import GradientBound, parts_of
from noisette.errors import PrivacyError, count
from noisette.ranks import Alone, AnyRanks
from noisette.ranks.process_group import canonical_name, canonical_parameters
from noisette.ranks.shards import part_of, whole
from noisette.run.loading import OwnRecords
from noisette.run.per_example import PerExampleClip

FILE = "checkpoint.safetensors"
_FORMAT = "noisette checkpoint 3"
_WAY_OUT = "finish the run with the version of noisette that began it"
FINGERPRINT = "fingerprint.json"
_KEY_BYTES = 32
_SHORT = 5  # bytes of a digest as a number, of which the sum of 64 is exact in double precision
_LARGE = 2**28  # bytes of tensors and arrays from which on records are drawn, as where each has to be read alone
_SAMPLED = 64  # records
COMPARED = "compared by a keyed digest, of more than 256 MiB by their number and 64 of them"


def digest_of_tensors(values: Iterable[Tensor], begin: str = "") -> str:
    """The SHA-256 digest of a text and the bytes of tensors."""
    digest = hashlib.sha256(begin.encode())
    for value in values:
        digest.update(value.detach().reshape(-1).cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Write tensors, numbers, texts, mappings and sequences to a folder; an older checkpoint stays until it is done."""
    tensors: dict[str, Tensor] = {}
    packed = json.dumps(_pack(content, "", tensors))
    facts = {"format": _FORMAT, "content": packed, "sha256": _digest_of(_FORMAT, packed, tensors)}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_files.atomic_write(folder / FILE, mode=0o600) as beside:
            # One entry: the format writes several in an order that changes with each file.
            save_file(tensors, beside, metadata={"noisette": json.dumps(facts)})
    except SafetensorError as error:
        raise OSError(f"{folder / FILE} cannot be written: {error}") from error


def read(folder: Path) -> dict[str, Any]:
    """The values that :func:`write` wrote; a ValueError for what was truncated or altered, or is of another format."""
    path = folder / FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist")
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})["noisette"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
        if facts["sha256"] != _digest_of(facts["format"], facts["content"], tensors):
            raise ValueError("another digest")
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(f"{path} was cut or altered; restore it from a copy") from error
    if facts["format"] != _FORMAT:
        raise ValueError(f"{path} has the format {facts['format']!r}; this version reads {_FORMAT!r}: {_WAY_OUT}")
    try:
        return _unpack(json.loads(facts["content"]), tensors)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} lacks a part that every checkpoint has: {error}") from error


def _digest_of(form: str, packed: str, tensors: Mapping[str, Tensor]) -> str:
    named = sorted(tensors.items())
    forms = [[name, str(value.dtype), list(value.shape)] for name, value in named]
    return digest_of_tensors((value for _, value in named), json.dumps([form, packed, forms]))


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON, with a tensor's number in its place. A mapping becomes a list of pairs, to keep key types."""
    match value:
        case Tensor():
            place = str(len(tensors))
            # A copy, because the format does not allow tensors that share memory.
            tensors[place] = value.detach().cpu().clone().contiguous()
            return {"tensor": place}
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            if other := [key for key in value if not isinstance(key, str | int)]:
                raise TypeError(f"a checkpoint holds mappings from text or numbers, got the key {other[0]!r} in {name}")
            return {"mapping": [[key, _pack(item, f"{name}/{key}", tensors)] for key, item in value.items()]}
        case list() | tuple():
            return [_pack(item, f"{name}/{place}", tensors) for place, item in enumerate(value)]
        case _:
            found = f"{name.lstrip('/')} is a {type(value).__name__}"
            raise TypeError(f"a checkpoint holds tensors, numbers, text, mappings and sequences, but {found}")


def _unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    match packed:
        case {"tensor": name}:
            return tensors[name]
        case {"mapping": pairs}:
            return {key: _unpack(item, tensors) for key, item in pairs}
        case list():
            return [_unpack(item, tensors) for item in packed]
        case _:
            return packed


def capture_state(model: nn.Module, optimizer: Optimizer, ranks: AnyRanks = Alone()) -> dict[str, Any]:  # noqa: B008
    """Weights, buffers and the optimizer's state; sharded tensors are put together, for which all ranks call this."""
    return {
        "weights": {name: whole(value, ranks) for name, value in _weights(model).items()},
        "optimizer": type(optimizer).__name__,
        "groups": names_of_groups(model, optimizer),
        "state": tree_map(partial(whole, ranks=ranks), optimizer.state_dict()),
    }


def _weights(model: nn.Module) -> dict[str, Any]:
    """The weights and buffers by names that are the same however the model is wrapped."""
    return {canonical_name(model, name): value for name, value in model.state_dict().items()}


def names_of_groups(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """The names of the parameters in each group of an optimizer; an empty one for what the model does not have."""
    names = {id(p): name for name, p in canonical_parameters(model)}
    return [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]


@contextmanager
def as_kept() -> Iterator[None]:
    """A ``ValueError`` in place of what Python says of values that no version keeps, in a file with a forged seal."""
    try:
        yield
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"the checkpoint is altered ({error!r}); restore it from a copy") from error


def _form(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


@dataclass(frozen=True)
class SavedRun:
    """A run after some of its steps: declared and released values alone, and no key."""

    terms: RunParameters
    steps_taken: int  # those that moved the weights
    ledger: str  # its path, relative to the folder of the checkpoint
    dataset: str  # the name in the ledger
    head: str  # of the ledger at the time of the checkpoint
    trained: list[str]  # names of the trained parameters
    bound: Mapping[str, float]  # what the bound has learned
    learned: Mapping[str, Any]  # of ``capture_state``
    extras: Mapping[str, Any]  # the caller's own values

    def facts(self) -> dict[str, Any]:
        return {known.name: getattr(self, known.name) for known in fields(self)} | {"terms": self.terms.facts()}

    @classmethod
    def told(cls, facts: Mapping[str, Any]) -> Self:
        """The run with these :meth:`facts`; a ValueError if they are not those of a run."""
        try:
            count(steps_taken=facts["steps_taken"] + 1)
            return cls(**{**facts, "terms": RunParameters.of(facts["terms"])})
        except (KeyError, TypeError, ValueError) as error:
            problem = f"what was saved of the run is not as this version keeps it ({error}): {_WAY_OUT}"
            raise ValueError(problem) from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The checkpoint in a folder, with the errors of :func:`read`, also where it is not that of a run."""
        content = read(folder)
        try:
            return cls.told(content)
        except ValueError as error:
            raise ValueError(f"{folder} holds no checkpoint of a run: {error}") from error

    @as_kept()
    def check_fits(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Check that bound, model and optimizer are like those of the run; a ValueError lists up to five problems."""
        state, own = self.learned, _weights(bound.model)
        weights = state["weights"]
        problems = [f"{name}: in the checkpoint, but not in the model" for name in weights if name not in own]
        for name, value in own.items():
            if name not in weights:
                problems.append(f"{name}: in the model, but not in the checkpoint")
            elif (was := _form(weights[name])) != _form(value):
                problems.append(f"{name}: {was} in the checkpoint, {_form(value)} in the model")
        if state["optimizer"] != type(optimizer).__name__:
            problems.append(f"the optimizer was {state['optimizer']}, not {type(optimizer).__name__}")
        elif state["groups"] != names_of_groups(bound.model, optimizer):
            problems.append("the optimizer held other parameters, or in another order")
        if problems:
            more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
            raise ValueError("the checkpoint is of another model:\n  " + "\n  ".join(problems[:5] + more))
        if self.trained != list(bound.parameters):
            raise ValueError("the checkpoint is of a run that trained other parameters; freeze the same ones")
        if self.terms.event.parts != parts_of(bound.pop_sums()) or self.bound.keys() != bound.state().keys():
            raise ValueError("the checkpoint is of a run with another clipping rule; give the bound the same one")

    @as_kept()
    def restore_state(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Restore bound, model and optimizer, or a ValueError that leaves them as they were; shards where there are."""
        self.check_fits(bound, optimizer)
        bound.restore(self.bound)  # first, because only it can still refuse its values
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        of_optimizer, weights, model = self.learned["state"], self.learned["weights"], bound.model

        def own_part(value: Any, p: Tensor) -> Any:
            return part_of(value, p) if isinstance(value, Tensor) and value.shape == p.shape else value

        states = of_optimizer["state"].items()
        by_number = {k: {name: own_part(value, parameters[k]) for name, value in held.items()} for k, held in states}
        optimizer.load_state_dict({**of_optimizer, "state": by_number})
        own = model.state_dict()
        model.load_state_dict({name: part_of(weights[canonical_name(model, name)], own[name]) for name in own})

    @as_kept()
    def ledger_near(self, folder: Path) -> Path:
        """The path of the ledger; a checkpoint from others must not choose the file that is written to."""
        place, own = (folder / self.ledger).resolve(), folder.resolve()
        if place.parent not in (own, own.parent):
            where = f"the checkpoint names a ledger in another folder, {place}"
            raise ValueError(f"{where}; if it is the run's, pass ledger=")
        return place

    def open_ledger(self, path: Path) -> Ledger:
        """The ledger of the run at this path, open for writing; with the errors of :class:`Ledger`."""
        if not path.is_file():
            raise FileNotFoundError(f"the ledger of the run is not at {path}; move it there, or pass ledger=")
        return Ledger(path, dataset=self.dataset)

    def steps_lost(self, ledger: Ledger) -> int:
        """Number of steps that the ledger records beyond those that moved the saved weights."""
        spent, steps = self.terms.spent(ledger), self.terms.steps
        if spent > steps:  # the last round may be longer than what is left
            spent -= in_whole_rounds(self.terms.event, steps) - steps
        lost = spent - self.steps_taken
        if not ledger.holds(self.head) or lost < 0:
            raise PrivacyError(
                "the ledger does not continue from the checkpoint: it belongs to another run, or is an older copy that "
                "misses steps spent since. Give the run its own ledger"
            )
        return lost


def check_declared_again(before: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Check that what is declared now is what the run of a checkpoint began with, as far as both name it."""
    pairs = {name: (value, now[name]) for name, value in before.items() if name in now and now[name] != value}
    said = {name: ["not declared" if value is None else value for value in pair] for name, pair in pairs.items()}
    if differences := [f"{name}: {was} in the checkpoint, {other} now" for name, (was, other) in said.items()]:
        raise ValueError(
            "the run of the checkpoint was declared otherwise, and goes on as it was declared:\n  "
            + "\n  ".join(differences)
            + "\nDeclare the same again, or begin another run, without the checkpoint but with the records' ledger"
        )


def facts_of(bound: GradientBound, optimizer: Optimizer, records: int) -> dict[str, object]:
    """What must be equal on all ranks, by name, with digests of the weights and of the optimizer's state."""
    clipping = bound.clipping if isinstance(bound, PerExampleClip) else None
    groups = [] if clipping is None else clipping.groups(list(bound.parameters))
    settings = [_plain(group) for group in optimizer.param_groups]
    return {
        "number of records": records,
        "version of noisette": __version__,
        "version of torch": torch.__version__,
        "optimizer": [type(optimizer).__name__, settings, names_of_groups(bound.model, optimizer)],
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


def _check_different_parts(key: bytes, dataset: Any, ranks: AnyRanks) -> None:
    """Check by keyed digests that no two ranks hold the same records: each of these would count twice in a sum."""
    with ranks.unanimous("the parts"):
        varies = not _digests_of_records(key, dataset.part, 0, len(dataset.own))
        digest = os.urandom(_KEY_BYTES) if varies else _digest_of_dataset(key, dataset.part)
    held = [numbers["digest"] for numbers in ranks.of_all("the parts", {"digest": int.from_bytes(digest[:_SHORT])})]
    for rank, found in enumerate(held):
        if (other := held.index(found)) < rank:
            raise PrivacyError(f"ranks {other} and {rank} hold the same records: give each its own part ({COMPARED})")


@dataclass(frozen=True)
class Fingerprint:
    """The keyed digest of a data set.

    Up to 256 MiB of tensors and arrays, alone or in a tuple, a list, a dictionary or a ``TensorDataset``, are digested
    to the last byte. Of any other data set the length and 64 records, drawn by the key, are digested; of one that
    returns different values each time, as with random augmentation, only the length. Of ``OwnRecords`` each rank
    digests those records that it holds, however they are divided.

    Source: HMAC-SHA256, RFC 2104.
    """

    key: str = field(repr=False)  # in hexadecimal digits, as the digest
    digest: str = field(repr=False)

    @classmethod
    def of(cls, dataset: Any, users: np.ndarray | None = None, key: bytes = b"", ranks: AnyRanks = Alone()) -> Self:  # noqa: B008
        key = key or os.urandom(_KEY_BYTES)
        return cls(key.hex(), _digest_with_users(key, dataset, users, ranks).hex())

    def fits(self, dataset: Any, users: np.ndarray | None = None, ranks: AnyRanks = Alone()) -> bool:  # noqa: B008
        return hmac.compare_digest(self.digest, self.of(dataset, users, bytes.fromhex(self.key), ranks).digest)

    def write(self, folder: Path) -> None:
        atomic_files.write(folder / FINGERPRINT, json.dumps(asdict(self)).encode() + b"\n", mode=0o600)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The fingerprint in a folder; a ValueError if it was truncated or altered."""
        path = folder / FINGERPRINT
        try:
            if path.exists() and not path.is_file():
                raise ValueError("a pipe would be waited for")
            found = cls(**json.loads(path.read_bytes()))
            if len(bytes.fromhex(found.key)) != _KEY_BYTES:
                raise ValueError("another key")
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} was cut or altered; restore it from a copy") from error
        return found


def check_same_records(dataset: object, records: Records, users: np.ndarray | None, ranks: AnyRanks) -> Fingerprint:
    """Check that the ranks share all records in one order, as far as a fingerprint tells, or hold each record once."""
    own = range(0) if records.own is None else records.own
    spans = ranks.of_all("the records", {"own": records.own is not None, "first": own.start, "end": own.stop})
    key = bytes.fromhex(ranks.from_first("the records", lambda: os.urandom(_KEY_BYTES).hex()))
    if any(span["own"] for span in spans):
        held = sorted((span["first"], span["end"]) for span in spans if span["first"] < span["end"])
        ends = [0, *(end for _, end in held)]
        if not all(span["own"] for span in spans) or [first for first, _ in held] + [records.size] != ends:
            raise PrivacyError(
                "each record of OwnRecords is held by exactly one rank: give every rank OwnRecords(dataset, first=..., "
                "of=...) with the place of its first record, without overlaps or gaps"
            )
        _check_different_parts(key, dataset, ranks)
    with ranks.unanimous("the records"):  # all digest at once, so that none waits for another
        found = Fingerprint.of(dataset, users, key, ranks)
    first = ranks.from_first("the records", lambda: found.digest)
    with ranks.unanimous("the records"):
        if first != found.digest:
            raise PrivacyError(
                f"rank {ranks.rank} has other records than rank 0, or the same in another order, or other users "
                f"({COMPARED}): give each rank the same data set. Where each rank holds a part of the records, give "
                "it noisette.OwnRecords(part, first=..., of=...)"
            )
    return found


def _digest_with_users(key: bytes, dataset: Any, users: np.ndarray | None, ranks: AnyRanks) -> bytes:
    if isinstance(dataset, OwnRecords):
        held = _digests_of_records(key, dataset.part, dataset.own.start, dataset.of)
        parts = ranks.of_all("the digests of the records", {"sum": sum(int.from_bytes(one[:_SHORT]) for one in held)})
        digest = _mac(key, b"parts of %d" % dataset.of, b"%d" % sum(part["sum"] for part in parts))
    else:
        digest = _digest_of_dataset(key, dataset)
    return digest if users is None else _mac(key, b"users", digest, digest_of_value(key, users))


def _digest_of_dataset(key: bytes, dataset: Any) -> bytes:
    known, size, _ = _read_by_record(dataset)
    if (parts := _parts(known)) and sum(part.nbytes for part in parts) <= _LARGE:
        return digest_of_value(key, known)
    return _mac(key, b"records %d" % size, *_digests_of_records(key, dataset, 0, size))


def _digests_of_records(key: bytes, part: Any, first: int, size: int) -> list[bytes]:
    """Of records drawn by the key among so many, those in this part, which begins with ``first``; none if they vary."""
    _, length, read = _read_by_record(part)
    # The remainder is not exactly uniform over the records, which does not matter here.
    drawn = [int.from_bytes(_mac(key, b"record %d" % i)) % size - first for i in range(_SAMPLED) if size]
    held = [at for at in drawn if 0 <= at < length]
    found, again = ([_mac(key, b"%d" % (first + at), digest_of_value(key, read(at))) for at in held] for _ in range(2))
    return found if found == again else []


def _read_by_record(dataset: Any) -> tuple[Any, int, Callable[[int], Any]]:
    """What a data set is known by, its length, and what reads one record."""
    known = getattr(dataset, "known_by", dataset)  # of one that was computed from records, these
    known = known.tensors if isinstance(known, TensorDataset) else dict(known) if isinstance(known, Mapping) else known
    if isinstance(known, list) or not (columns := _parts(known)):
        return known, len(known), lambda at: known[at]
    return known, len(columns[0]), lambda at: tree_map(lambda column: column[at : at + 1], known)


def _parts(known: Any) -> list[Any]:
    """The columns, or the records of a list, where all are tensors or arrays; otherwise none."""
    parts = known.values() if isinstance(known, dict) else known if isinstance(known, tuple | list) else [known]
    return list(parts) if all(isinstance(part, Tensor | np.ndarray) for part in parts) else []


def _mac(key: bytes, *parts: bytes) -> bytes:
    mac = hmac.new(key, digestmod="sha256")
    for part in parts:
        mac.update(b"%d:" % len(part))  # so that no two lists of parts give the same bytes
        mac.update(part)
    return mac.digest()


def digest_of_value(key: bytes, value: Any) -> bytes:
    """The digest of a value by a key: of tensors and arrays to the last byte, of other objects the type alone."""
    match value:
        case Tensor():
            content = value.detach().reshape(-1).cpu().view(torch.uint8).numpy().tobytes()
            return _mac(key, b"tensor", f"{value.dtype} {tuple(value.shape)}".encode(), content)
        case np.ndarray():
            return _mac(key, b"array", f"{value.dtype.str} {value.shape}".encode(), value.tobytes())
        case Mapping():
            items = [_mac(key, repr(name).encode(), digest_of_value(key, item)) for name, item in value.items()]
            return _mac(key, b"mapping", *items)
        case tuple() | list():
            return _mac(key, b"sequence", *(digest_of_value(key, item) for item in value))
        case bytes():
            return _mac(key, b"bytes", value)
        case None | bool() | int() | float() | str() | np.generic():
            return _mac(key, b"plain", repr(value).encode())
        case _:
            return _mac(key, b"other", type(value).__name__.encode())
