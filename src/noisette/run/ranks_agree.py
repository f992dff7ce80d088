"""What the ranks of a run must have in common before its first step: one ledger, one key, equal models and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from noisette._internal.version import __version__
from noisette.accounting import Ledger
from noisette.errors import PrivacyError
from noisette.ranks import AnyRanks
from noisette.ranks.wrappers import canonical_name
from noisette.sampling.loading import Records


def ledger_on_ranks(
    given: Ledger | Path | str | None, ranks: AnyRanks, open_own: Callable[[Path], Ledger] = Ledger
) -> tuple[Ledger, Ledger | None]:
    """The ledger of a run: that of rank 0, of which the other ranks keep a copy in memory.

    Args:
        given: an open ledger, the path of one, or nothing for one in memory.
        ranks: the processes of the run.
        open_own: opens the ledger at a path.

    Returns:
        The ledger, and the same if it was opened here and has to be closed.

    Raises:
        PrivacyError: another rank than 0 was given a file, or has recorded other releases.
    """
    own: Ledger | None = None
    with ranks.unanimous("the ledger"):
        if ranks.rank == 0:
            if isinstance(given, str | Path):
                given = own = open_own(Path(given))
            ledger = given if given is not None else Ledger()
        elif isinstance(given, Ledger) and given.path is not None:
            raise PrivacyError(
                f"rank {ranks.rank} has opened the ledger {given.path} itself; give privatize the path, "
                f"ledger={str(given.path)!r}, which rank 0 alone opens"
            )
        else:
            ledger = given if isinstance(given, Ledger) else Ledger()
    if ranks.size == 1:
        return ledger, own
    first = ranks.from_first("the ledger", lambda: {"dataset": ledger.dataset, "totals": ledger.totals})
    if ranks.rank == 0:
        return ledger, own
    mirror = Ledger.mirror(first["dataset"], first["totals"])
    if not isinstance(given, Ledger):
        return mirror, None
    if given.events != mirror.events:
        raise PrivacyError(f"the ledger of rank {ranks.rank} has other releases than that of rank 0")
    return given, None


def check_own_records(records: Records, ranks: AnyRanks) -> None:
    """Check that the ranks hold every record once, or share all of them.

    Raises:
        PrivacyError: some hold records of their own and others do not, or a record is held twice or by none.
    """
    if ranks.size == 1:
        return
    own = range(0) if records.own is None else records.own
    spans = ranks.of_all("the records", {"own": records.own is not None, "first": own.start, "end": own.stop})
    if not any(span["own"] for span in spans):
        return
    held = sorted((span["first"], span["end"]) for span in spans if span["first"] < span["end"])
    ends = [0, *(end for _, end in held)]
    if not all(span["own"] for span in spans) or [first for first, _ in held] + [records.size] != ends:
        raise PrivacyError(
            "each record of OwnRecords is held by exactly one rank: give every rank OwnRecords(dataset, first=..., "
            "of=...) with the place of its first record, without overlaps or gaps"
        )


def facts_of(model: nn.Module, optimizer: Optimizer, settings: Mapping[str, object]) -> dict[str, object]:
    """What must be equal on all ranks, by name, with the digest of the weights."""
    settings = {
        "version of noisette": __version__,
        "version of torch": torch.__version__,
        "optimizer": [type(optimizer).__name__, [_plain(group) for group in optimizer.param_groups]],
        **settings,
    }
    return settings | digests_of(model)


def digests_of(model: nn.Module) -> dict[str, object]:
    """The names and forms of a model's parameters, and the SHA-256 digest of their values."""
    named = {canonical_name(model, name): p for name, p in model.named_parameters()}
    digest = hashlib.sha256()
    for p in named.values():
        if type(p) in (nn.Parameter, Tensor):  # of a sharded parameter each rank holds another part
            digest.update(p.detach().reshape(-1).cpu().view(torch.uint8).numpy().data)
    forms = [[name, list(p.shape), str(p.dtype), p.requires_grad] for name, p in named.items()]
    return {"names, shapes and types of parameters": forms, "values of parameters": digest.hexdigest()}


def _plain(group: Mapping[str, Any]) -> dict[str, object]:
    return {name: value for name, value in group.items() if isinstance(value, bool | int | float | str | tuple)}
