"""The run folder: written beside its place, moved there when it is whole."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from noisette.accounting import Ledger

LEDGER = "ledger.jsonl"
_FILES = {LEDGER, "model.safetensors", "privacy.txt", "report.html", "run.json"}


class RunFolder:
    """A place for a run at ``out``. Use it in a ``with`` block around the training.

    Until it is whole the folder is called ``out.unfinished-1``, with the ledger in it from the first step on. When all
    files are on the disk it takes its name, in place of an older run. A block that ends without :meth:`complete` leaves
    nothing, or the ledger alone if privacy was spent.

    Raises:
        ValueError: ``out`` exists, and is not a run or holds other files too.
    """

    def __init__(self, out: Path) -> None:
        self.out = out.resolve()
        self._whole = False
        if not self.out.exists():
            return
        if not self.out.is_dir() or not (self.out / "run.json").is_file():
            raise ValueError(f"{out} exists and is not a run; choose another --out, or move it away")
        if foreign := sorted({entry.name for entry in self.out.iterdir()} - _FILES):
            raise ValueError(
                f"{out} holds other files than those of a run, such as {foreign[0]}; choose another --out, or move them"
            )

    def __enter__(self) -> Self:
        self._parents = [parent for parent in self.out.parents if not parent.exists()]
        self.out.parent.mkdir(parents=True, exist_ok=True)
        self._making = _fresh_sibling(self.out, "unfinished")
        return self

    @property
    def ledger(self) -> Path:
        """Where the run's ledger is written."""
        return self._making / LEDGER

    def complete(self, files: Mapping[str, bytes]) -> None:
        """Write these files and give the folder its name.

        Raises:
            OSError: a file cannot be written; the older run stays.
        """
        for name, content in files.items():
            _write_durably(self._making / name, content)
        _sync(self._making)
        self._take_place()

    def _take_place(self) -> None:
        older = _fresh_sibling(self.out, "replaced")
        try:
            if self.out.exists():
                os.replace(self.out, older / "run")
            os.replace(self._making, self.out)
        except BaseException:
            if (older / "run").exists():
                os.replace(older / "run", self.out)
            older.rmdir()
            raise
        self._whole = True
        _sync(self.out.parent)
        shutil.rmtree(older)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._whole:
            return
        for file in self._making.iterdir():
            if file.name != LEDGER or not _spent(file):
                file.unlink()
        with suppress(OSError):  # not empty: what was spent stays on record
            for folder in (self._making, *self._parents):
                folder.rmdir()
        if error and self._making.exists():
            error.add_note(f"What was spent until then is on record in {self.ledger}")


def _fresh_sibling(out: Path, word: str) -> Path:
    """A new empty folder beside ``out``."""
    for number in itertools.count(1):
        folder = out.with_name(f"{out.name}.{word}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("there is always another number")


def _write_durably(path: Path, content: bytes) -> None:
    try:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error  # writing does not tell which file


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _spent(ledger: Path) -> bool:
    """Whether steps stand in a ledger's account; one that cannot be read speaks against its run."""
    if ledger.stat().st_size == 0:
        return False
    try:
        return bool(Ledger.read(ledger).events)
    except (KeyError, TypeError, ValueError):
        return True
