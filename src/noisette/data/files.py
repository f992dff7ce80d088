"""Finds the files of a built-in data set in the data folders, or downloads them from the official address."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from noisette.data.dataset import DataSet
from noisette.data.errors import DataError

Found = TypeVar("Found")
Files = tuple[str, ...]
Reader = Callable[[Path], DataSet]  # from the folder of the data set

DAMAGED_NPZ = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Source:
    """The official files of a data set: the address of their folder, and the checksum of each file."""

    address: str
    checksums: Mapping[str, str]

    @property
    def files(self) -> Files:
        """Their names."""
        return tuple(self.checksums)


def read(
    name: str,
    source: Source,
    official: Reader,
    *,
    data_dir: Path | None,
    copies: Mapping[Files, Reader] | None = None,
) -> DataSet:
    """The data set ``name`` from the first folder that contains it, downloaded if none does.

    The folders are ``name/`` under ``data_dir``, under ``NOISETTE_DATA`` and under the user's cache, in this order. In
    each, the files of ``source`` take precedence over ``copies``: partial or re-encoded files, with a reader for each
    set of them. Downloads go to the cache; a file appears there once it is complete and its checksum agrees.

    Raises:
        DataError: files are absent and cannot be downloaded; the message says which files to put where.
    """
    found = first(name, {source.files: official} | dict(copies or {}), data_dir=data_dir)
    if found is not None:
        return found
    import pooch  # imported here because the import takes as long as that of typer

    places = folders(name, data_dir)
    for file, checksum in source.checksums.items():
        try:
            pooch.retrieve(source.address + file, known_hash=checksum, fname=file, path=places[-1])
        except (OSError, ValueError) as error:
            raise DataError(
                f"{name} is not on this machine and could not be downloaded ({_reason(error)}): "
                f"put {', '.join(source.files)} from {source.address} into {places[0]}"
            ) from error
    return official(places[-1])


def first(name: str, layouts: Mapping[Files, Callable[[Path], Found]], *, data_dir: Path | None) -> Found | None:
    """Reads the first layout all of whose files are in the first of :func:`folders` that has one; None if none has."""
    for folder in folders(name, data_dir):
        for files, reader in layouts.items():
            if all((folder / file).is_file() for file in files):
                return reader(folder)
    return None


def folders(name: str, data_dir: Path | None) -> list[Path]:
    """The folders in which files of this name are looked for, in order; downloads go to the last."""
    import pooch

    parents = [Path(pooch.os_cache("noisette"))]
    for option, path in (("NOISETTE_DATA", os.environ.get("NOISETTE_DATA")), ("data_dir", data_dir)):
        if path:
            if not Path(path).is_dir():
                raise DataError(f"{option} is {path}, which is not a folder; create it or leave {option} out")
            parents.insert(0, Path(path))
    return [parent / name for parent in parents]


def read_npz(path: Path, *names: str) -> list[np.ndarray]:
    """The arrays of these names in an NPZ of a built-in set; nothing is unpickled.

    Raises:
        DataError: the file is damaged, or one of the arrays is absent.
    """
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return [archive[name] for name in names]
    except DAMAGED_NPZ as error:
        raise DataError(f"{path} is damaged or not the published file ({error}); download it again") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "the checksum differs from the official one"
