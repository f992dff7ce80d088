"""A whole run on two data sets that differ by one record, with the same coins and the same released values.

What the mechanism is given may then differ, by the bound; all else must be the same to the last bit.
Source of the idea: Cebere et al. 2026 (Re:cord-play), arXiv 2602.17454.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from noisette.cli import app
from noisette.core.noise import SecretKey
from noisette.core.release import BoundedSum, GaussianRelease, shares_of

SECRET = bytes(range(32))
# A keyed digest of the records, for their owner's eyes: of the same size, and gone when the run is over.
KEYED = "fingerprint.json"


@dataclass(frozen=True)
class Mechanism:
    """One call of the release: its public arguments, what it was given, and what it made of that."""

    public: tuple[Any, ...]
    given: list[BoundedSum]
    released: list[Tensor]


@dataclass(frozen=True)
class Course:
    """All that a run lets out, and beside it what its mechanisms were given."""

    exit_codes: list[int]
    printed: str
    files: dict[str, bytes]
    mechanisms: list[Mechanism]


class Recorder:
    """Stands in for the release, and keeps every call; with the released values of another run it forces them."""

    def __init__(self, forced: Sequence[Mechanism] = ()) -> None:
        self.calls: list[Mechanism] = []
        self._forced = forced
        self._whole = GaussianRelease.__call__

    def install(self, patch: pytest.MonkeyPatch) -> None:
        def call(release: GaussianRelease, sums: Sequence[BoundedSum], names: Mapping[int, str], *, step: int) -> None:
            self._call(release, sums, names, step)

        patch.setattr(GaussianRelease, "__call__", call)

    def _call(self, release: GaussianRelease, sums: Sequence[BoundedSum], names: Mapping[int, str], step: int) -> None:
        params = [p for part in sums for p in part.params]
        named = tuple(names.get(id(p), "") for p in params)
        numbers = tuple((part.bound, share, part.name) for part, share in zip(sums, shares_of(sums), strict=True))
        public = (release.noise_multiplier, release.expected_batch_size, step, named, numbers)
        given = [
            BoundedSum(part.params, tuple(g.double().clone() for g in part.grads), part.bound, part.share, part.name)
            for part in sums
        ]
        self._whole(release, sums, names, step=step)
        if len(self.calls) < len(self._forced):
            for p, value in zip(params, self._forced[len(self.calls)].released, strict=True):
                p.grad = value.clone()
        self.calls.append(Mechanism(public, given, [p.grad.clone() for p in params if p.grad is not None]))


def moved(one: Mechanism, other: Mechanism) -> float:
    """How far apart the inputs of two calls are, in units that one record may move them by."""
    pairs = zip(one.given, other.given, shares_of(one.given), strict=True)
    squares = [
        share * sum(float((a - b).square().sum()) for a, b in zip(p.grads, q.grads, strict=True)) / p.bound**2
        for p, q, share in pairs
    ]
    return math.sqrt(sum(squares))


def course(place: Path, commands: Sequence[Sequence[object]], *, forced: Sequence[Mechanism] = ()) -> Course:
    """What these commands let out, taken one after the other in an emptied place under a known key and a still clock.

    The files are those after each command, and the place is left empty.
    """
    recorder = Recorder(forced)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr("noisette.ranks.launch.SecretKey", partial(SecretKey, SECRET))
        patch.setattr("noisette.training.loop.time.perf_counter", lambda: 0.0)
        patch.setattr("secrets.token_hex", lambda size: "00" * size)  # the marks of ledger lines
        recorder.install(patch)
        exit_codes, printed, files = [], "", {}
        for k, command in enumerate(commands):
            torch.manual_seed(0)
            shown = CliRunner().invoke(app, list(map(str, command)))
            exit_codes.append(shown.exit_code)
            printed += shown.output
            found = [path for path in sorted(place.rglob("*")) if path.is_file()]
            files |= {f"{k}: {path.relative_to(place)}": content_of(path) for path in found}
    for entry in place.iterdir():
        shutil.rmtree(entry)
    return Course(exit_codes, printed, files, recorder.calls)


def content_of(path: Path) -> bytes:
    return b"%d bytes" % path.stat().st_size if path.name == KEYED else path.read_bytes()
