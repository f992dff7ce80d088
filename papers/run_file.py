"""A file of finished runs, one JSON line each."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import noisette
from noisette.accounting import atomic_files

Run = TypeVar("Run")

RUNS = "runs.jsonl"


def read(path: Path, parse: Callable[[Mapping[str, Any]], Run]) -> list[Run]:
    """Read the finished runs of a file, in order; none if there is no file.

    ``parse`` converts the JSON object of a line to a run.

    Raises:
        ValueError: a line is not a run: ``parse`` raises KeyError, TypeError or ValueError.
    """
    if not path.exists():
        return []
    return [_parsed(line, parse, path, number) for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)]


def append(path: Path, facts: Mapping[str, Any]) -> None:
    """Add a run to the file; the file is never half-written."""
    older = path.read_bytes() if path.exists() else b""
    atomic_files.write(path, older + json.dumps(facts).encode() + b"\n")


def made_with(weights: str | None = None) -> dict[str, Any]:
    """Return the versions and the machine of a run, and the digest of its file of public weights, if any."""
    import torch

    digest = hashlib.sha256(Path(weights).read_bytes()).hexdigest() if weights else None
    return {
        "public_weights": digest,
        "noisette": noisette.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
    }


def _parsed(line: str, parse: Callable[[Mapping[str, Any]], Run], path: Path, number: int) -> Run:
    try:
        return parse(json.loads(line))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"line {number} of {path} is not a finished run ({error}); remove it") from error
