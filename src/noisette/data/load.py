"""Loads a built-in data set by its name, or the user's own files.

To add a built-in set, write its reader and a test, and add a line to the table at the end of its file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from noisette.data import own_files, tables
from noisette.data.built_in_images import IMAGES
from noisette.data.built_in_tables import TABLES
from noisette.data.built_in_texts import TEXTS, glove
from noisette.data.dataset import DataError, DataSet
from noisette.data.declaration import Declaration
from noisette.data.files import BuiltIn
from noisette.data.words import Numbering

_FORMATS: dict[str, Callable[[Path, Declaration], DataSet]] = {
    **dict.fromkeys((*tables.DELIMITED, *tables.TYPED), tables.read_set),
    ".npz": own_files.read_arrays,
}
REGISTRY: dict[str, BuiltIn] = IMAGES | TEXTS | TABLES


def names() -> tuple[str, ...]:
    """The names of the built-in data sets.

    >>> "digits" in names()
    True
    """
    return tuple(REGISTRY)


def load(name: str, *, data_dir: Path | None = None, declaration: Declaration | None = None) -> DataSet:
    """The built-in data set ``name``; or, if it is the path of a folder, a table or an .npz, the user's own.

    The files of a built-in set are found as by :func:`noisette.data.files.read`. The user's own files need a
    declaration of the facts about them that are public.

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
        return _built_in(name, data_dir, declaration)
    path = Path(name)
    if path.is_dir():
        return own_files.read_images(path, declaration)
    for suffix, read in _FORMATS.items():
        if path.is_file() and path.name.lower().endswith(suffix):
            return read(path, declaration)
    own = f"or the path of a folder, {', '.join(_FORMATS)}"
    if path.is_file():
        raise DataError(f"{name} is a file of another kind; give a built-in set ({', '.join(names())}) {own}")
    close = get_close_matches(name, names(), n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise DataError(f"there is no data set and no file {name!r}.{hint} Give one of {', '.join(names())}; {own}")


def _built_in(name: str, data_dir: Path | None, declaration: Declaration) -> DataSet:
    numbering = declaration.numbering
    if declaration != Declaration(numbering=numbering):
        raise DataError(f"{name} is a built-in set and takes no declaration; write ./{name} for files of your own")
    entry = REGISTRY[name]
    if entry.texts and entry.tokens is None:
        return entry.read(data_dir, numbering)
    if replace(numbering, folder=None) != Numbering():
        raise DataError(f"tokens and words are for texts whose words are hashed, not for {name}; leave them out")
    if entry.tokens is not None:
        return entry.read(data_dir, replace(glove(data_dir), tokens=entry.tokens))
    return entry.read(data_dir)
