"""A data set by its name, or from files of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from noisette.data import adbench, adult, ag_news, cifar10, csv, digits, emnist, folder, mnist, npz
from noisette.data.dataset import DataSet
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError

BUILT_IN: dict[str, Callable[[Path | None], DataSet]] = {
    "digits": lambda data_dir: digits.read(),
    "mnist": mnist.mnist,
    "fashion-mnist": mnist.fashion_mnist,
    "kmnist": mnist.kmnist,
    "emnist-letters": emnist.letters,
    "cifar10": cifar10.cifar10,
    "adult": adult.adult,
    "ag-news": ag_news.ag_news,
    **{f"adbench-{name}": partial(adbench.read, name) for name in adbench.TABLES},
}
OWN: dict[str, Callable[[Path, Declaration], DataSet]] = {
    ".csv": csv.read,
    ".csv.gz": csv.read,
    ".npz": npz.read,
}


def names() -> tuple[str, ...]:
    """The names of the built-in data sets.

    >>> "digits" in names()
    True
    """
    return tuple(BUILT_IN)


def load(name: str, *, data_dir: Path | None = None, declaration: Declaration | None = None) -> DataSet:
    """The built-in data set ``name``; or, if it is the path of a folder, .csv, .csv.gz or .npz, the user's own.

    The files of a built-in set are looked for in ``data_dir``/name, then under ``NOISETTE_DATA``, then in the user's
    cache, and else downloaded there. Files of the user's own need a declaration of what is public about them.

    Guarantee: shapes, number of classes and ``declared_size`` come from constants and the declaration, except that
    inputs have the shape of the arrays or images found; nothing is fitted to the records.

    Raises:
        DataError: on an unknown name, files that are absent or damaged, or records that are not as declared.

    >>> digits = load("digits")
    >>> digits.train.inputs.shape, digits.classes, digits.declared_size
    ((1437, 1, 8, 8), 10, 1437)
    """
    declaration = declaration or Declaration()
    if name in BUILT_IN:
        if declaration != Declaration():
            raise DataError(f"{name} is a built-in set and takes no declaration; write ./{name} for files of your own")
        return BUILT_IN[name](data_dir)
    path = Path(name)
    if path.is_dir():
        return folder.read(path, declaration)
    for ending, read in OWN.items():
        if path.is_file() and path.name.lower().endswith(ending):
            return read(path, declaration)
    raise DataError(_unknown(name, path))


def _unknown(name: str, path: Path) -> str:
    own = f"or the path of a folder, {', '.join(OWN)}"
    if path.is_file():
        return f"{name} is a file of another kind; give a built-in set ({', '.join(BUILT_IN)}) {own}"
    close = get_close_matches(name, BUILT_IN, n=1)
    meant = f" Did you mean {close[0]}?" if close else ""
    return f"there is no data set and no file {name!r}.{meant} Give one of {', '.join(BUILT_IN)}; {own}"
