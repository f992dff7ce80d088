"""What the ranks of a run must have in common before its first step: one ledger, one key, equal models and settings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from noisette.__init__ import __version__
from noisette.accounting import Ledger
from noisette.clipping.per_example import PerExampleClip
from noisette.core.release import GradientBound
from noisette.errors import PrivacyError
from noisette.ranks import AnyRanks
from noisette.ranks.process_group import canonical_parameters
from noisette.ranks.shards import is_sharded
from noisette.run.checkpoint import names_of_groups
from noisette.run.dataset_fingerprint import Fingerprint
from noisette.run.loading import Records


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
    first = ranks.from_first("the ledger", lambda: _shared(ledger))
    if ranks.rank and not isinstance(given, Ledger):
        ledger = Ledger.mirror(first["dataset"], first["totals"])
    with ranks.unanimous("the ledger"):
        if isinstance(given, str | Path) and not first["on disk"]:
            raise PrivacyError(f"rank {ranks.rank} was given the ledger {given}, and rank 0 none; give it to all ranks")
        if ledger.events != Ledger.mirror(first["dataset"], first["totals"]).events:
            raise PrivacyError(f"the ledger of rank {ranks.rank} has other releases than that of rank 0")
    return ledger, own


def _shared(ledger: Ledger) -> dict[str, object]:
    """What the other ranks learn of the ledger."""
    return {"dataset": ledger.dataset, "totals": ledger.totals, "on disk": ledger.path is not None}


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


def check_same_records(dataset: object, users: np.ndarray | None, ranks: AnyRanks) -> None:
    """Check that all ranks have the same records in the same order, as far as a fingerprint tells.

    Args:
        dataset: of this rank.
        users: the number of each record's user, if users are protected.
        ranks: the processes of the run.

    Raises:
        PrivacyError: they do not: a record could be in the parts of two ranks.
    """
    if ranks.size == 1:
        return
    told = ranks.from_first("the records", lambda: Fingerprint.of(dataset, users).facts())
    with ranks.unanimous("the records"):
        if not Fingerprint.told(told).fits(dataset, users):
            raise PrivacyError(
                f"rank {ranks.rank} has other records than rank 0, or the same in another order, or other users: "
                "give each rank the same data set. Where each rank holds a part of the records, give it "
                "noisette.OwnRecords(part, first=..., of=...)"
            )


def settings_of(bound: GradientBound) -> dict[str, object]:
    """How gradients are bounded, by name."""
    clipping = bound.clipping if isinstance(bound, PerExampleClip) else None
    groups = [] if clipping is None else clipping.groups(list(bound.parameters))
    return {
        "bound": [type(bound).__name__, type(clipping).__name__, dict(bound.state())],
        "clipping norms": [[part.name, part.bound, part.share] for part in bound.pop_sums()],
        "settings of the clipping rule": {} if clipping is None else _plain(vars(clipping)),
        "groups of the clipping rule": [list(group.names) for group in groups],
    }


def facts_of(model: nn.Module, optimizer: Optimizer, settings: Mapping[str, object]) -> dict[str, object]:
    """What must be equal on all ranks, by name, with digests of the weights and of the optimizer's state."""
    groups = names_of_groups(model, optimizer)
    settings = {
        "version of noisette": __version__,
        "version of torch": torch.__version__,
        "optimizer": [type(optimizer).__name__, [_plain(group) for group in optimizer.param_groups], groups],
        "state of the optimizer": _digest(tree_leaves(optimizer.state_dict()["state"])),
        **settings,
    }
    return settings | digests_of(model)


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
    """The SHA-256 digest of the tensors among these values, without sharded ones, of which each rank holds a part."""
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor) and not is_sharded(value) and value.layout is torch.strided:
            digest.update(value.detach().reshape(-1).cpu().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _plain(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings among these attributes, as text: numbers, texts, and tensors that stand for numbers."""
    kinds = (bool, int, float, str, tuple, Tensor)
    return {name: repr(value) for name, value in settings.items() if isinstance(value, kinds)}
