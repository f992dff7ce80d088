"""The state of a model and its optimizer: captured as plain values, restored completely or not at all."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

from noisette import errors as checks
from noisette.accounting import Ledger, atomic_files
from noisette.accounting.budget import RunParameters
from noisette.accounting.events import in_whole_rounds
from noisette.core.release import GradientBound, parts_of
from noisette.errors import PrivacyError
from noisette.ranks.process_group import canonical_name, canonical_parameters
from noisette.ranks.shards import part_of, whole


def capture_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Weights, buffers and the optimizer's state, and the facts that :func:`check_fits` compares.

    Sharded tensors are put together, for which all ranks call this.
    """
    return {
        "weights": {name: whole(value) for name, value in _weights(model).items()},
        "optimizer": type(optimizer).__name__,
        "groups": names_of_groups(model, optimizer),
        "state": tree_map(whole, optimizer.state_dict()),
    }


def check_fits(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer) -> None:
    """Check that a captured state fits this model and this optimizer.

    Raises:
        ValueError: it does not; the first five problems are listed.
    """
    weights, own = state["weights"], _weights(model)
    problems = [f"{name}: in the checkpoint, but not in the model" for name in weights if name not in own]
    for name, value in own.items():
        if name not in weights:
            problems.append(f"{name}: in the model, but not in the checkpoint")
        elif (was := _form(weights[name])) != _form(value):
            problems.append(f"{name}: {was} in the checkpoint, {_form(value)} in the model")
    if state["optimizer"] != type(optimizer).__name__:
        problems.append(f"the optimizer was {state['optimizer']}, not {type(optimizer).__name__}")
    elif state["groups"] != names_of_groups(model, optimizer):
        problems.append("the optimizer held other parameters, or in another order")
    if problems:
        more = [f"and {len(problems) - 5} more"] if len(problems) > 5 else []
        raise ValueError("the checkpoint is of another model:\n  " + "\n  ".join(problems[:5] + more))


def restore_state(state: Mapping[str, Any], model: nn.Module, optimizer: Optimizer) -> None:
    """Restore what :func:`capture_state` took from a model and an optimizer like these.

    Raises:
        ValueError: they are not like them; nothing is changed then.
    """
    check_fits(state, model, optimizer)
    optimizer.load_state_dict(_in_parts(state["state"], optimizer))
    weights = state["weights"]
    own = model.state_dict()
    model.load_state_dict({name: part_of(weights[canonical_name(model, name)], like) for name, like in own.items()})


def _in_parts(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The state of an optimizer with what has the shape of a sharded parameter sharded like it."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def of(p: Tensor, values: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: part_of(value, p) if isinstance(value, Tensor) and value.shape == p.shape else value
            for name, value in values.items()
        }

    return {**state, "state": {k: of(parameters[int(k)], values) for k, values in state["state"].items()}}


def _weights(model: nn.Module) -> dict[str, Any]:
    """The weights and buffers by names that are the same however the model is wrapped."""
    return {canonical_name(model, name): value for name, value in model.state_dict().items()}


def names_of_groups(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """The names of the parameters in each group of an optimizer; an empty one for what the model does not have."""
    names = {id(p): name for name, p in canonical_parameters(model)}
    return [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]


def _form(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


FILE = "checkpoint.json"
_FORMAT = "noisette checkpoint 2"
_PRIVATE = 0o600
_MOST_BYTES = 2**27  # of the JSON file: no checkpoint is larger


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Write these values to a folder, durably; an older checkpoint stays until the new one is complete.

    Args:
        folder: created if it does not exist.
        content: tensors, numbers, text, ``None``, and mappings and sequences of those.

    Raises:
        TypeError: a value of another type; the message says where.
        OSError: the files cannot be written; the older checkpoint stays.
    """
    tensors: dict[str, Tensor] = {}
    packed = _pack(content, "", tensors)
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"tensors-{1 + max(map(_number, _tensor_files(folder)), default=0)}.safetensors"
    try:
        with atomic_files.atomic_write(place, mode=_PRIVATE) as beside:
            save_file(tensors, beside)
    except SafetensorError as error:
        raise OSError(f"{place} cannot be written: {error}") from error
    facts = {"format": _FORMAT, "tensors": place.name, "sha256": _digest(place), "content": packed}
    atomic_files.write(folder / FILE, _sealed(facts), mode=_PRIVATE)
    for other in _tensor_files(folder):
        if other != place:
            other.unlink()


def read(folder: Path) -> dict[str, Any]:
    """The values that :func:`write` wrote: mappings as dictionaries, sequences as lists, tensors on the CPU.

    Raises:
        FileNotFoundError: the folder holds no checkpoint.
        ValueError: a file of it is missing, was truncated or altered, or is of another format.
    """
    path = folder / FILE
    if path.stat().st_size > _MOST_BYTES:
        raise ValueError(f"{path} is larger than any checkpoint; restore it from a copy")
    content = path.read_bytes()
    facts = _unsealed(content)
    if facts is None:
        raise ValueError(f"{path} was cut or altered; restore it from a copy")
    if facts.get("format") != _FORMAT:
        raise ValueError(f"{path} has the format {facts.get('format')!r}; this version reads {_FORMAT!r}")
    try:
        return _unpack(facts["content"], _tensors(folder, facts["tensors"], facts["sha256"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} lacks a part that every checkpoint has: {error}") from error


def _tensors(folder: Path, name: str, digest: str) -> dict[str, Tensor]:
    path = folder / Path(name).name
    if not path.is_file() or _digest(path) != digest:
        raise ValueError(f"{path} is absent, or was cut or altered; restore it from a copy")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path} is not a file of safetensors: {error}") from error


def _sealed(facts: Mapping[str, Any]) -> bytes:
    seal = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps({**facts, "seal": seal}).encode() + b"\n"


def _unsealed(content: bytes) -> dict[str, Any] | None:
    """The facts, or ``None`` where these are not the bytes that were written."""
    try:
        facts = json.loads(content)
        del facts["seal"]
        return facts if _sealed(facts) == content else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensor_files(folder: Path) -> list[Path]:
    return [path for path in folder.glob("tensors-*.safetensors") if _number(path)]


def _number(path: Path) -> int:
    digits = path.stem.removeprefix("tensors-")
    return int(digits) if digits.isdecimal() else 0


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
            pairs = []
            for key, item in value.items():
                if not isinstance(key, str | int):
                    raise TypeError(f"a checkpoint holds mappings from text or numbers, got the key {key!r} in {name}")
                pairs.append([key, _pack(item, f"{name}/{key}", tensors)])
            return {"mapping": pairs}
        case list() | tuple():
            return [_pack(item, f"{name}/{place}", tensors) for place, item in enumerate(value)]
        case _:
            raise TypeError(
                f"a checkpoint holds tensors, numbers, text, mappings and sequences, but {name.lstrip('/')} is a "
                f"{type(value).__name__}"
            )


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


@dataclass(frozen=True)
class SavedRun:
    """A run after some of its steps. Holds no secret, and released values only.

    Args:
        terms: the run's declared parameters.
        steps_taken: steps that moved the weights.
        ledger: path of the ledger, relative to the folder of the checkpoint.
        dataset: name of the data set in the ledger.
        head: of the ledger at the time of the checkpoint.
        trained: names of the trained parameters.
        bound: what the bound has learned.
        learned: weights, buffers and the optimizer's state.
        extras: the caller's own values.
    """

    terms: RunParameters
    steps_taken: int
    ledger: str
    dataset: str
    head: str
    trained: list[str]
    bound: Mapping[str, float]
    learned: Mapping[str, Any]
    extras: Mapping[str, Any]

    @classmethod
    def write(
        cls,
        folder: Path,
        bound: GradientBound,
        *,
        terms: RunParameters,
        steps_taken: int,
        ledger: Ledger,
        learned: Mapping[str, Any],
        extras: Mapping[str, Any],
    ) -> None:
        """Write the checkpoint of a run whose ledger is a file, in place of an older one.

        Raises:
            TypeError: something cannot be saved; the message names it.
            OSError: the files cannot be written; the older checkpoint stays.
        """
        assert ledger.path is not None, "in memory"
        ledger.shorten()
        head = ledger.head
        atomic_files.sync(ledger.path)  # the line that the checkpoint names must be on disk first
        saved = cls(
            terms=terms,
            steps_taken=steps_taken,
            ledger=os.path.relpath(ledger.path, folder.resolve()),
            dataset=ledger.dataset,
            head=head,
            trained=list(bound.parameters),
            bound=bound.state(),
            learned=learned,
            extras=extras,
        )
        content = {known.name: getattr(saved, known.name) for known in fields(cls)}
        write(folder, content | {"terms": terms.facts()})

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The checkpoint in a folder.

        Raises:
            FileNotFoundError: there is none.
            ValueError: a file was truncated or altered, or is not the checkpoint of a run.
        """
        content = read(folder)
        try:
            terms = RunParameters.of(content.pop("terms"))
            checks.count(steps_taken=content["steps_taken"] + 1)
            return cls(terms=terms, **content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{folder} holds no checkpoint of a run: {error}") from error

    def check_fits(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Check that bound, model and optimizer are like those of the run.

        Raises:
            ValueError: they are not.
        """
        check_fits(self.learned, bound.model, optimizer)
        if self.trained != list(bound.parameters):
            raise ValueError("the checkpoint is of a run that trained other parameters; freeze the same ones")
        if self.terms.event.parts != parts_of(bound.pop_sums()) or self.bound.keys() != bound.state().keys():
            raise ValueError("the checkpoint is of a run with another clipping rule; give the bound the same one")

    def restore_state(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Restore the state of bound, model and optimizer.

        Raises:
            ValueError: they are not like those of the run, or the saved bound is outside its domain; they are left as
                they were.
        """
        self.check_fits(bound, optimizer)
        bound.restore(self.bound)  # first, because only it can still refuse its values
        restore_state(self.learned, bound.model, optimizer)

    def open_ledger(self, path: Path) -> Ledger:
        """The ledger of the run at this path, open for writing.

        Raises:
            FileNotFoundError: it is not at its path.
            ValueError: a line was truncated or altered.
            PrivacyError: it is open elsewhere.
        """
        if not path.is_file():
            raise FileNotFoundError(f"the ledger of the run is not at {path}; move it there, or pass ledger=")
        return Ledger(path, dataset=self.dataset)

    def steps_lost(self, ledger: Ledger) -> int:
        """Number of steps that the ledger records beyond those that moved the saved weights.

        Raises:
            PrivacyError: the ledger does not continue from the checkpoint.
        """
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
