"""The files of a checkpoint: tensors as safetensors, everything else as JSON with a checksum of both.

Reading them runs no code, and a truncated or altered file is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from noisette._internal import atomic_files

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
