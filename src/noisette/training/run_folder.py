"""The run folder: written under a temporary name, renamed when complete, reopened to continue. It imports no torch."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Self

from noisette.accounting import Ledger, atomic_files
from noisette.accounting.ledger import LEDGER_FILE

CHECKPOINT = "checkpoint"
NAME = re.compile(r"(.+)\.unfinished-\d+")
_SAVED = "checkpoint.safetensors"  # written by noisette.run.checkpoint, whose import brings torch
_SETTINGS = "settings.json"
_RESUME = "noisette train --resume"
_FILES = {LEDGER_FILE, "model.safetensors", "privacy.txt", "report.html", "run.json", CHECKPOINT}


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
    place = shlex.quote(str(folder))
    if can_continue(folder):
        return f"{folder} has not ended: it is still trained, or was cut off. To continue it: {_RESUME} {place}"
    spent = f"What it spent is shown by: noisette ledger show {place}"
    return f"{folder} was cut off before its first checkpoint, so it cannot be continued. {spent}"


class RunFolder:
    """The folder of a run, see ``docs/reference/run-folder.md``. Use it in a ``with`` block around the training.

    An older run at ``out`` is kept as ``out.replaced-1``: its ledger may be about the same records. A block that ends
    without :meth:`complete` leaves nothing if no privacy was spent, and the ledger and the checkpoints otherwise.

    Raises:
        ValueError: ``out`` exists, and is not a run or holds other files too; or it is to lie in what is no folder.
    """

    def __init__(self, out: Path) -> None:
        self.out = out.resolve()
        self.replaced: Path | None = None  # where the older run is kept, once there is one
        self._making: Path | None = None
        self._resumed = self._whole = False
        if self.out.exists():
            _check_is_run(self.out, str(out))
        if not (above := next(parent for parent in self.out.parents if parent.exists())).is_dir():
            raise ValueError(f"{above} is not a folder, so {out} cannot be made in it; choose another --out")

    @classmethod
    def unfinished(cls, place: Path) -> Self:
        """The unfinished run with this folder or this ``out``, to continue it; a ``ValueError`` unless there is one."""
        place = place.resolve()
        named = NAME.fullmatch(place.name)
        folder, out = (place, place.with_name(named[1])) if named else (_only_one_unfinished(place), place)
        if not can_continue(folder):
            said = f" {in_words(folder)}" if (folder / LEDGER_FILE).is_file() else ""
            raise ValueError(f"{folder} holds no checkpoint to continue from; start a new run.{said}")
        run = cls(out)
        run._making, run._resumed = folder, True
        return run

    def __enter__(self) -> Self:
        self._parents = [parent for parent in self.out.parents if not parent.exists()]
        if self._making is None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._making = _fresh_sibling(self.out, "unfinished")
        return self

    @property
    def place(self) -> Path:
        """The folder under its present, temporary name."""
        assert self._making is not None, "used in a with block"
        return self._making

    @property
    def ledger(self) -> Path:
        return self.place / LEDGER_FILE

    @property
    def checkpoint(self) -> Path:
        return self.place / CHECKPOINT

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that :meth:`keep_settings` wrote; a ``ValueError`` if the file was truncated or altered."""
        path = self.checkpoint / _SETTINGS
        try:
            return dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} was cut or altered: {error}") from error

    def keep_settings(self, settings: Mapping[str, Any]) -> None:
        """Write the settings that the run begins with, which are plain values, for continuing it."""
        self.checkpoint.mkdir(mode=0o700)
        atomic_files.write(self.checkpoint / _SETTINGS, json.dumps(settings, indent=2).encode() + b"\n", mode=0o600)

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write these files and exchange the folders, or restore them on a failure."""
        for name, content in files.items():
            atomic_files.write(self.place / name, content)
        ended = _fresh_sibling(self.out, "ended")
        older = _fresh_sibling(self.out, "replaced") if self.out.exists() else None
        with ExitStack() as undo:
            undo.callback(lambda: [folder.rmdir() for folder in (ended, older) if folder and folder.exists()])

            def move(source: Path, target: Path) -> None:
                os.replace(source, target)
                undo.callback(os.replace, target, source)

            if older:
                move(self.out, older)
                _check_is_run(older, str(self.out))  # another process may have added files
            move(self.place, self.out)
            if (self.out / CHECKPOINT).exists():  # last, so that a crash keeps it
                move(self.out / CHECKPOINT, ended / CHECKPOINT)
            undo.pop_all()
        self._whole, self.replaced = True, older
        atomic_files.sync(self.out.parent)
        shutil.rmtree(ended)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self._whole:
            return
        if not self._resumed:
            self._tidy()
        if error and self.place.exists():
            if self.ledger.exists():
                error.add_note(f"The privacy spent until then is recorded in {self.ledger}")
            if self.checkpoint.exists():
                error.add_note(f"To continue the run: {_RESUME} {shlex.quote(str(self.place))}")

    def _tidy(self) -> None:
        """Delete everything except the ledger and the checkpoints, and these too if no privacy was spent."""
        kept = {self.ledger, self.checkpoint} if self.ledger.is_file() and _spent(self.ledger) else set()
        for entry in set(self.place.iterdir()) - kept:
            shutil.rmtree(entry) if entry == self.checkpoint else entry.unlink()
        with suppress(OSError):  # not empty: the ledger stays
            for folder in (self.place, *self._parents):
                folder.rmdir()


def _check_is_run(folder: Path, name: str) -> None:
    if not folder.is_dir() or not (folder / "run.json").is_file():
        raise ValueError(f"{name} exists and is not a run; choose another --out, or move it away")
    if foreign := sorted({entry.name for entry in folder.iterdir()} - _FILES):
        other = f"{name} holds other files than those of a run, such as {foreign[0]}"
        raise ValueError(f"{other}; choose another --out, or move them")


def _only_one_unfinished(out: Path) -> Path:
    begun = unfinished_runs(out)
    found = [folder for folder in begun if can_continue(folder)] or begun
    if not found:
        finished = "it is finished" if (out / "run.json").is_file() else "there is no such run"
        raise ValueError(f"there is no unfinished run for {out}: {finished}")
    if len(found) > 1:
        raise ValueError(f"there are several unfinished runs for {out}; name one of {', '.join(map(str, found))}")
    return found[0]


def _fresh_sibling(out: Path, word: str) -> Path:
    for number in itertools.count(1):
        folder = out.with_name(f"{out.name}.{word}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always another number")


def _spent(ledger: Path) -> bool:
    """Whether the ledger records steps; a ledger that cannot be read counts as one that does."""
    try:
        return ledger.stat().st_size > 0 and bool(Ledger.read(ledger).events)
    except (KeyError, TypeError, ValueError):
        return True
