"""Loads a built-in data set by its name, or the user's own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from noisette.data import csv, folder, npz, table
from noisette.data.dataset import DataSet
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError
from noisette.data.numbering import Numbering
from noisette.data.registry import REGISTRY, BuiltInTexts, names

FORMATS: dict[str, Callable[[Path, Declaration], DataSet]] = {
    **dict.fromkeys(table.SUFFIXES, csv.read),
    ".npz": npz.read,
}


def load(name: str, *, data_dir: Path | None = None, declaration: Declaration | None = None) -> DataSet:
    """The built-in data set ``name``; or, if it is the path of a folder, a table or an .npz, the user's own.

    The files of a built-in set are looked for in ``data_dir``/name, then under ``NOISETTE_DATA``, then in the user's
    cache; if they are in none of these, they are downloaded to the cache. The user's own files need a declaration of
    the facts about them that are public.

    Guarantee: shapes, number of classes and ``declared_size`` come from constants and the declaration, except that
    inputs have the shape of the arrays or images found; nothing is fitted to the records.

    Raises:
        DataError: the name is unknown, files are absent or damaged, or records contradict the declaration.

    >>> digits = load("digits")
    >>> digits.train.inputs.shape, digits.classes, digits.declared_size
    ((1437, 1, 8, 8), 10, 1437)
    """
    declaration = declaration or Declaration()
    if name in REGISTRY:
        if declaration != Declaration(numbering=declaration.numbering):
            raise DataError(f"{name} is a built-in set and takes no declaration; write ./{name} for files of your own")
        if not isinstance(REGISTRY[name], BuiltInTexts) and replace(declaration.numbering, folder=None) != Numbering():
            raise DataError(f"tokens and words are for texts whose words are hashed, not for {name}; leave them out")
        return REGISTRY[name].load(data_dir, declaration.numbering)
    path = Path(name)
    if path.is_dir():
        return folder.read(path, declaration)
    for suffix, read in FORMATS.items():
        if path.is_file() and path.name.lower().endswith(suffix):
            return read(path, declaration)
    raise DataError(_unknown(name, path))


def _unknown(name: str, path: Path) -> str:
    own = f"or the path of a folder, {', '.join(FORMATS)}"
    if path.is_file():
        return f"{name} is a file of another kind; give a built-in set ({', '.join(names())}) {own}"
    close = get_close_matches(name, names(), n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"there is no data set and no file {name!r}.{hint} Give one of {', '.join(names())}; {own}"
