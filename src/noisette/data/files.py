"""Where the files of a known data set lie: the folders looked in, then the official address."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pooch

from noisette.data.dataset import DataSet
from noisette.data.errors import DataError

Found = TypeVar("Found")
Files = tuple[str, ...]
Reader = Callable[[Path], DataSet]  # the folder of the data set -> the data set


@dataclass(frozen=True)
class Source:
    """The official files of a data set: the address they lie under, and the checksum of each."""

    address: str
    checksums: Mapping[str, str]

    @property
    def files(self) -> Files:
        """Their names, in the order of the table."""
        return tuple(self.checksums)


def read(
    name: str,
    source: Source,
    official: Reader,
    *,
    data_dir: Path | None,
    copies: Mapping[Files, Reader] | None = None,
) -> DataSet:
    """The data set ``name`` from the first folder that holds it, downloaded if none does.

    The folders are ``name/`` under ``data_dir``, under ``NOISETTE_DATA`` and under the user's cache, in this
    order. In each, the files of ``source`` come before those of ``copies``: partial or re-encoded ones, each
    with a reader of its own. Downloads go to the cache, are checked, and appear there whole or not at all.

    Raises:
        DataError: says which files to put where, if they are absent and cannot be fetched.
    """
    found = first(name, {source.files: official} | dict(copies or {}), data_dir=data_dir)
    if found is not None:
        return found
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
    """What lies in the first of :func:`folders` with all files of a layout, earlier layouts first; or nothing."""
    for folder in folders(name, data_dir):
        for files, reader in layouts.items():
            if all((folder / file).is_file() for file in files):
                return reader(folder)
    return None


def folders(name: str, data_dir: Path | None) -> list[Path]:
    """Where files of this name are looked for, in this order; downloads go to the last."""
    return [parent / name for parent in _parents(data_dir)]


def _parents(data_dir: Path | None) -> list[Path]:
    parents = [Path(pooch.os_cache("noisette"))]
    if os.environ.get("NOISETTE_DATA"):
        parents.insert(0, _folder("NOISETTE_DATA", Path(os.environ["NOISETTE_DATA"])))
    if data_dir is not None:
        parents.insert(0, _folder("data_dir", data_dir))
    return parents


def _folder(what: str, path: Path) -> Path:
    if not path.is_dir():
        raise DataError(f"{what} is {path}, which is not a folder; create it or leave {what} out")
    return path


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return "the checksum differs from the official one"
