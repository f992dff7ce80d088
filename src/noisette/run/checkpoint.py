"""A checkpoint: the public state of a run in one file, which is restored completely or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
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

FILE = "checkpoint.safetensors"
_FORMAT = "noisette checkpoint 3"
_WAY_OUT = "finish the run with the version of noisette that began it"


def digest_of_tensors(values: Iterable[Tensor], begin: str = "") -> str:
    """The SHA-256 digest of a text and the bytes of tensors."""
    digest = hashlib.sha256(begin.encode())
    for value in values:
        digest.update(value.detach().reshape(-1).cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


# The file


def write(folder: Path, content: Mapping[str, Any]) -> None:
    """Write these values to a folder, durably; an older checkpoint stays until the new one is complete.

    Raises:
        TypeError: a value is no tensor, number, text, ``None``, or a mapping or sequence of those; it says where.
        OSError: the file cannot be written; the older checkpoint stays.
    """
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
    """The values that :func:`write` wrote: mappings as dictionaries, sequences as lists, tensors on the CPU.

    Raises:
        FileNotFoundError: the folder holds no checkpoint.
        ValueError: it was truncated or altered, or is of another format.
    """
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


# Model and optimizer


def capture_state(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Weights, buffers and the optimizer's state; sharded tensors are put together, for which all ranks call this."""
    return {
        "weights": {name: whole(value) for name, value in _weights(model).items()},
        "optimizer": type(optimizer).__name__,
        "groups": names_of_groups(model, optimizer),
        "state": tree_map(whole, optimizer.state_dict()),
    }


def _weights(model: nn.Module) -> dict[str, Any]:
    """The weights and buffers by names that are the same however the model is wrapped."""
    return {canonical_name(model, name): value for name, value in model.state_dict().items()}


def names_of_groups(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """The names of the parameters in each group of an optimizer; an empty one for what the model does not have."""
    names = {id(p): name for name, p in canonical_parameters(model)}
    return [[names.get(id(p), "") for p in group["params"]] for group in optimizer.param_groups]


def _form(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else type(value).__name__


# The run


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
        """The same as plain values."""
        return {known.name: getattr(self, known.name) for known in fields(self)} | {"terms": self.terms.facts()}

    @classmethod
    def told(cls, facts: Mapping[str, Any]) -> Self:
        """The run with these :meth:`facts`.

        Raises:
            ValueError: they are not those of a run.
        """
        try:
            checks.count(steps_taken=facts["steps_taken"] + 1)
            return cls(**{**facts, "terms": RunParameters.of(facts["terms"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"what was saved of the run is not as this version keeps it ({error}): {_WAY_OUT}"
            ) from error

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The checkpoint in a folder, with the errors of :func:`read`, also where it is not that of a run."""
        content = read(folder)
        try:
            return cls.told(content)
        except ValueError as error:
            raise ValueError(f"{folder} holds no checkpoint of a run: {error}") from error

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

    def restore_state(self, bound: GradientBound, optimizer: Optimizer) -> None:
        """Restore the state of bound, model and optimizer; what has the shape of a sharded tensor is sharded like it.

        Raises:
            ValueError: they are not like those of the run, or the saved bound is outside its domain; they are left as
                they were.
        """
        self.check_fits(bound, optimizer)
        bound.restore(self.bound)  # first, because only it can still refuse its values
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        of_optimizer, weights = self.learned["state"], self.learned["weights"]
        by_number = {
            k: {
                name: part_of(value, parameters[k])
                if isinstance(value, Tensor) and value.shape == parameters[k].shape
                else value
                for name, value in values.items()
            }
            for k, values in of_optimizer["state"].items()
        }
        optimizer.load_state_dict({**of_optimizer, "state": by_number})
        model = bound.model
        of_model = {
            name: part_of(weights[canonical_name(model, name)], like) for name, like in model.state_dict().items()
        }
        model.load_state_dict(of_model)

    def open_ledger(self, path: Path) -> Ledger:
        """The ledger of the run at this path, open for writing; with the errors of :class:`Ledger`."""
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
