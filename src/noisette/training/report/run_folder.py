"""The run folder: written beside its place, moved there when it is whole, and picked up again when it never was."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from noisette._internal import atomic_files
from noisette.accounting import Ledger
from noisette.accounting.ledger.ledger import LEDGER_FILE

_CHECKPOINT, _SETTINGS = "checkpoint", "settings.json"
_FILES = {LEDGER_FILE, "model.safetensors", "privacy.txt", "report.html", "run.json", _CHECKPOINT}
_SAVED = "checkpoint.json"  # there from the first checkpoint on; its room would bring torch with it
_UNFINISHED = re.compile(r"(.+)\.unfinished-\d+")


class RunFolder:
    """A place for a run at ``out``. Use it in a ``with`` block around the training.

    Until it is whole the folder is called ``out.unfinished-1``, with the ledger in it from the first step on, and a
    folder for checkpoints. When all files are on the disk it takes its name, in place of an older run, without the
    checkpoints. A block that ends without :meth:`complete` leaves nothing, or ledger and checkpoints if privacy was
    spent.

    Raises:
        ValueError: ``out`` exists, and is not a run or holds other files too.
    """

    def __init__(self, out: Path) -> None:
        self.out = out.resolve()
        self._making: Path | None = None
        self._resumed = self._whole = False
        if self.out.exists():
            _check_is_run(self.out, str(out))

    @classmethod
    def unfinished(cls, place: Path) -> Self:
        """The folder of a run that was begun and not finished, to go on with. It is left as it is until it is whole.

        Args:
            place: the folder itself, or the name that it was to take.

        Raises:
            ValueError: there is none, or several, or it was never saved.
        """
        place = place.resolve()
        if named := _UNFINISHED.fullmatch(place.name):
            folder, out = place, place.with_name(named[1])
        else:
            folder, out = _only_one_unfinished(place), place
        if not (folder / _CHECKPOINT / _SAVED).is_file():
            raise ValueError(f"{folder} holds no checkpoint, so there is nothing to go on from; start the run anew")
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
        """The folder as it is called until it is whole."""
        assert self._making is not None, "in a with block"
        return self._making

    @property
    def ledger(self) -> Path:
        """Where the run's ledger is written."""
        return self.place / LEDGER_FILE

    @property
    def checkpoint(self) -> Path:
        """Where the run is saved."""
        return self.place / _CHECKPOINT

    @property
    def settings(self) -> dict[str, Any]:
        """What :meth:`keep_settings` kept.

        Raises:
            ValueError: it was cut.
        """
        path = self.checkpoint / _SETTINGS
        try:
            return dict(json.loads(path.read_bytes()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} was cut or altered: {error}") from error

    def keep_settings(self, settings: Mapping[str, Any]) -> None:
        """Keep what the run was begun with, for those who go on with it: plain values, by name.

        Raises:
            OSError: the file cannot be written.
        """
        self.checkpoint.mkdir(mode=0o700)
        atomic_files.write(self.checkpoint / _SETTINGS, json.dumps(settings, indent=2).encode() + b"\n", mode=0o600)

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write these files and give the folder its name.

        Raises:
            OSError: a file cannot be written; the older run stays.
        """
        for name, content in files.items():
            atomic_files.write(self.place / name, content)
        self._take_place()

    def _take_place(self) -> None:
        """Exchange the folders; back on a failure. The checkpoint goes last, so that a crash leaves what can go on."""
        older = _fresh_sibling(self.out, "replaced")
        moves = [(self.out, older / "run")] if self.out.exists() else []
        moves.append((self.place, self.out))
        if self.checkpoint.exists():
            moves.append((self.out / _CHECKPOINT, older / _CHECKPOINT))
        done: list[tuple[Path, Path]] = []
        try:
            for source, target in moves:
                os.replace(source, target)
                done.append((source, target))
                if source == self.out and target.name == "run":
                    _check_is_run(target, str(self.out))  # others may have put files there meanwhile
        except BaseException:
            for source, target in reversed(done):
                os.replace(target, source)
            older.rmdir()
            raise
        self._whole = True
        atomic_files.sync(self.out.parent)
        shutil.rmtree(older)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._whole:
            return
        if not self._resumed:
            self._tidy()
        if error and self.place.exists():
            error.add_note(f"What was spent until then is on record in {self.ledger}")
            if self.checkpoint.exists():
                error.add_note(f"To go on with what is left: noisette train --resume {self.place}")

    def _tidy(self) -> None:
        """Keep what speaks of privacy that was spent, and what can be gone on with; nothing if none was."""
        spent = self.ledger.is_file() and _spent(self.ledger)
        for entry in self.place.iterdir():
            if entry == self.checkpoint and not spent:
                shutil.rmtree(entry)
            elif entry != self.checkpoint and not (spent and entry == self.ledger):
                entry.unlink()
        with suppress(OSError):  # not empty: what was spent stays on record
            for folder in (self.place, *self._parents):
                folder.rmdir()


def _check_is_run(folder: Path, name: str) -> None:
    if not folder.is_dir() or not (folder / "run.json").is_file():
        raise ValueError(f"{name} exists and is not a run; choose another --out, or move it away")
    if foreign := sorted({entry.name for entry in folder.iterdir()} - _FILES):
        raise ValueError(
            f"{name} holds other files than those of a run, such as {foreign[0]}; choose another --out, or move them"
        )


def unfinished_runs(out: Path) -> list[Path]:
    """The folders of runs that were begun for this place, were saved, and did not finish."""
    out = out.resolve()
    found = out.parent.iterdir() if out.parent.is_dir() else []
    named = {folder: _UNFINISHED.fullmatch(folder.name) for folder in found}
    return sorted(
        folder
        for folder, name in named.items()
        if name and name[1] == out.name and (folder / _CHECKPOINT / _SAVED).is_file()
    )


def _only_one_unfinished(out: Path) -> Path:
    match unfinished_runs(out):
        case [folder]:
            return folder
        case []:
            finished = "it is finished" if (out / "run.json").is_file() else "there is no such run"
            raise ValueError(f"no unfinished run was begun for {out}: {finished}")
        case several:
            raise ValueError(f"several unfinished runs were begun for {out}; say which: {', '.join(map(str, several))}")


def _fresh_sibling(out: Path, word: str) -> Path:
    """A new empty folder beside ``out``."""
    for number in itertools.count(1):
        folder = out.with_name(f"{out.name}.{word}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always another number")


def _spent(ledger: Path) -> bool:
    """Whether steps stand in a ledger's account; one that cannot be read speaks against its run."""
    if ledger.stat().st_size == 0:
        return False
    try:
        return bool(Ledger.read(ledger).events)
    except (KeyError, TypeError, ValueError):
        return True
