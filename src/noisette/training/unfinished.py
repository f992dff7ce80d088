"""Folders of runs that have not ended: how they are called, what they hold, and how to continue."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from noisette.accounting.ledger import LEDGER_FILE

CHECKPOINT = "checkpoint"
NAME = re.compile(r"(.+)\.unfinished-\d+")
_SAVED = "checkpoint.safetensors"  # written by noisette.run.checkpoint, whose import brings torch


def can_continue(folder: Path) -> bool:
    """Whether the folder holds a checkpoint."""
    return (folder / CHECKPOINT / _SAVED).is_file()


def unfinished_runs(out: Path) -> list[Path]:
    """The folders of runs for this ``out`` that have not ended, and that hold a checkpoint or a ledger."""
    out = out.resolve()
    found = out.parent.iterdir() if out.parent.is_dir() else []
    named = {folder: NAME.fullmatch(folder.name) for folder in found}
    return sorted(
        folder
        for folder, name in named.items()
        if name and name[1] == out.name and (can_continue(folder) or (folder / LEDGER_FILE).is_file())
    )


def in_words(folder: Path) -> str:
    """What an unfinished run has left in its folder, and how to continue it."""
    if can_continue(folder):
        return (
            f"{folder} is a run that has not ended: it is still trained, or was cut off. To continue it: noisette "
            f"train --resume {shlex.quote(str(folder))}"
        )
    return (
        f"{folder} is a run that was cut off before its first checkpoint, so it cannot be continued. What it spent is "
        f"shown by: noisette ledger show {shlex.quote(str(folder))}"
    )
