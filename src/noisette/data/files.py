"""Finds the files of a built-in data set in the data folders, or downloads them from the official address."""

import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from noisette.data.dataset import DataError, DataSet

Found = TypeVar("Found")
Files = tuple[str, ...]
Reader = Callable[[Path], DataSet]  # from the folder of the data set

DAMAGED_ZIP = (OSError, ValueError, TypeError, KeyError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class Source:
    """The official files of a data set: the address of their folder, and the checksum of each file."""

    address: str
    checksums: Mapping[str, str]

    @property
    def files(self) -> Files:
        return tuple(self.checksums)


@dataclass(frozen=True)
class BuiltIn:
    """A built-in data set: its reader, called with ``data_dir``, and for texts also with how words are numbered."""

    read: Callable[..., DataSet]
    description: str
    texts: bool = False


def read(
    name: str, source: Source, official: Reader, *, data_dir: Path | None, copies: Mapping[Files, Reader] | None = None
) -> DataSet:
    """The data set ``name`` from the first of :func:`folders` that has it, downloaded if none does.

    In each, the files of ``source`` take precedence over ``copies``: partial or re-encoded files, with a reader. If it
    cannot be downloaded, a ``DataError`` says which files to put where.
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
            of_system = isinstance(error, OSError)
            why = error.strerror or type(error).__name__ if of_system else "the checksum differs from the official one"
            raise DataError(
                f"{name} is not on this machine and could not be downloaded ({why}): "
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
    """The folders of this name under ``data_dir``, NOISETTE_DATA and the user's cache, to which downloads go."""
    import pooch

    parents = [Path(pooch.os_cache("noisette"))]
    for option, path in (("NOISETTE_DATA", os.environ.get("NOISETTE_DATA")), ("data_dir", data_dir)):
        if path:
            if not Path(path).is_dir():
                raise DataError(f"{option} is {path}, which is not a folder; create it or leave {option} out")
            parents.insert(0, Path(path))
    return [parent / name for parent in parents]


def plain_arrays(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """The arrays of these names that an NPZ holds; nothing is unpickled. Raises one of ``DAMAGED_ZIP``."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
        return {name: np.asarray(archive[name]) for name in archive.files if name in names}


def read_npz(path: Path, *names: str) -> list[np.ndarray]:
    """The arrays of these names in an NPZ of a built-in set; a ``DataError`` if it is damaged or lacks one."""
    try:
        arrays = plain_arrays(path, names)
        return [arrays[name] for name in names]
    except DAMAGED_ZIP as error:
        raise DataError(f"{path} is damaged or not the published file ({error}); download it again") from error


def members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the wanted files of a tar; nothing is unpacked."""
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                if wanted(member.name) and (stream := opened.extractfile(member)):
                    yield member.name, stream.read()
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise DataError(f"{archive} is damaged ({error}); download it again") from error
