"""Loads a built-in data set by its name, or the user's own files: tables, arrays (.npz) and folders of images.

To add a built-in set, write its reader and a test, and add a line to the table at the end of its file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from noisette.data import files, tables
from noisette.data.built_in_images import IMAGES
from noisette.data.built_in_tables import TABLES
from noisette.data.columns import Declaration, ImageForm, codes, meant
from noisette.data.dataset import DataError, DataSet, Split, in_rows, refuse, unit_pixels
from noisette.data.words import Numbering

if TYPE_CHECKING:
    from PIL import Image

Value = TypeVar("Value")
REGISTRY: dict[str, files.BuiltIn] = IMAGES | TABLES
ARRAYS = ("x_train", "y_train", "x_test", "y_test", "X", "y")
SUFFIXES = (".jpeg", ".jpg", ".png")


def names() -> tuple[str, ...]:
    """The names of the built-in data sets."""
    return tuple(REGISTRY)


def load(name: str, *, data_dir: Path | None = None, declaration: Declaration | None = None) -> DataSet:
    """The built-in data set ``name``; or the user's own folder, table or .npz at this path, which need a declaration.

    Files of a built-in set are looked for in ``data_dir``, in NOISETTE_DATA and in the user's cache, or downloaded.

    Guarantee: shapes, number of classes and ``declared_size`` come from constants and the declaration, except that
    inputs have the shape of the arrays found; nothing is fitted to the records.

    Raises:
        DataError: the name is unknown, files are absent or damaged, or records contradict the declaration.

    >>> digits = load("digits")
    >>> digits.train.inputs.shape, digits.classes, digits.declared_size
    ((1437, 1, 8, 8), 10, 1437)
    """
    declaration = declaration or Declaration()
    if name in REGISTRY:
        return _built_in(name, data_dir, declaration)
    path, own = Path(name), f"or the path of a folder, {', '.join(tables.SUFFIXES)}, .npz"
    if path.is_dir():
        data = read_images(path, declaration)
    elif path.is_file() and path.name.lower().endswith((".npz", *tables.SUFFIXES)):
        data = (read_arrays if path.suffix.lower() == ".npz" else tables.read_set)(path, declaration)
    elif path.is_file():
        raise DataError(f"{name} is a file of another kind; give a built-in set ({', '.join(names())}) {own}")
    else:
        known = f"{meant(name, names())} give one of {', '.join(names())}; {own}".strip()
        raise DataError(f"there is no data set and no file {name!r}: {known}")
    splits = {"train": data.train, "test": data.test}
    refuse(data.name, [f"{name} holds no records" for name, split in splits.items() if split and not len(split.inputs)])
    return data


def _built_in(name: str, data_dir: Path | None, declaration: Declaration) -> DataSet:
    numbering = declaration.numbering
    if declaration != Declaration(numbering=numbering):
        raise DataError(f"{name} is a built-in set and takes no declaration; write ./{name} for files of your own")
    entry = REGISTRY[name]
    if entry.texts:
        return entry.read(data_dir, numbering)
    if replace(numbering, folder=None) != Numbering():
        raise DataError(f"tokens and words are for texts whose words are hashed, not for {name}; leave them out")
    return entry.read(data_dir)


def read_arrays(path: Path, declaration: Declaration) -> DataSet:
    """The arrays ``x_train, y_train`` and optionally ``x_test, y_test``, or ``X, y``, of an NPZ as a data set.

    Inputs are (n, features), (n, h, w) or (n, c, h, w), labels integers or class names. Images of bytes are scaled by
    their range to [0, 1]; other arrays are used unchanged. Nothing is unpickled.
    """
    classes, size = declaration.public_facts(path.name, test_place="in x_test and y_test")
    try:
        arrays = files.plain_arrays(path, ARRAYS)
    except files.DAMAGED_ZIP as error:  # a TypeError if the file holds a single array
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""  # others quote the file
        raise DataError(f"{path} is not a valid NPZ of plain arrays{why}; save it with numpy.savez") from error
    pairs = [("x_train", "y_train") if "x_train" in arrays or "y_train" in arrays else ("X", "y")]
    if "x_test" in arrays or "y_test" in arrays:
        pairs.append(("x_test", "y_test"))
    refuse(path.name, [problem for x, y in pairs for problem in _problems(arrays, x, y, declaration)])
    train, *test = (Split(_inputs(arrays[x]), _targets(arrays[y], declaration)) for x, y in pairs)
    return DataSet(path.name, train, test[0] if test else None, classes, size, target=declaration.target)


def _problems(arrays: Mapping[str, np.ndarray], x: str, y: str, declaration: Declaration) -> list[str]:
    absent = [name for name in (x, y) if name not in arrays]
    if absent:
        found = ", ".join(sorted(arrays)) or "none"
        return [f"no {' and no '.join(absent)}; name the arrays {', '.join(ARRAYS)} (found {found})"]
    inputs, targets, problems = arrays[x], arrays[y], []
    if inputs.ndim not in (2, 3, 4) or inputs.dtype.kind not in "buif":
        expected = "real numbers, (n, features), (n, h, w) or (n, c, h, w)"
        problems.append(f"{x} is {inputs.dtype} of shape {inputs.shape}; expected {expected}")
    is_number = declaration.target is not None
    if targets.ndim != 1 or targets.dtype.kind not in ("uif" if is_number else "buiU"):
        expected = "real numbers, (n,)" if is_number else "integers or class names, (n,)"
        problems.append(f"{y} is {targets.dtype} of shape {targets.shape}; expected {expected}")
    elif is_number and not np.isfinite(targets).all():
        problems.append(f"{y}: expected finite real numbers")
    elif targets.dtype.kind == "U" and (unknown := np.flatnonzero(_targets(targets, declaration) < 0).tolist()):
        where = in_rows(unknown)
        problems.append(f"{y}: none of the declared classes {where}; declare classes as the list of their names")
    return problems


def _inputs(array: np.ndarray) -> np.ndarray:
    images = array[:, None] if array.ndim == 3 else array
    if images.ndim == 4 and images.dtype == np.uint8:
        return unit_pixels(np.moveaxis(images, 1, 3))
    with np.errstate(over="ignore"):
        return images.astype(np.float32)


def _targets(array: np.ndarray, declaration: Declaration) -> np.ndarray:
    if declaration.target is not None:
        return declaration.target.scaled(array.astype(np.float64))
    return codes(array.tolist(), declaration.class_names) if array.dtype.kind == "U" else array.astype(np.int64)


_File = tuple[Path, int, str]  # an image, its class, and how errors name it, since the name of the file may be private


def read_images(path: Path, declaration: Declaration) -> DataSet:
    """The images in ``train/CLASS`` and optionally ``test/CLASS``, or in ``CLASS``; inputs (n, c, h, w) in [0, 1].

    Each is brought to the declared form; without one, all must be 8-bit grey, or all 8-bit colour, and have the size of
    the first. A ``DataError`` lists what is undeclared, or what is no such folder or image, without names of files.
    """
    classes, size = declaration.public_facts(path.name, test_place="in the folder test beside train", images=True)
    names = declaration.class_names
    train_place, test_place = _named(path, "train"), _named(path, "test")
    if not train_place:
        if test_place or not any(_named(path, name) for name in names):
            raise DataError(f"there is no folder {path}/train; put images into {path}/CLASS/ or {path}/train/CLASS/")
        train_place = path
    train = _files(train_place, names)
    test = _files(test_place, names) if test_place else None
    form = declaration.images or _first(train[0])
    return DataSet(path.name, _split(train, form), _split(test, form) if test is not None else None, classes, size)


def unlabelled(path: Path, form: ImageForm) -> tuple[list[str], np.ndarray]:
    """The names of the images that lie in a folder, in order, and the images, (n, c, h, w) in [0, 1].

    A ``DataError`` lists every file that is not such an image.
    """
    entries = _visible(path)
    other = [entry.name for entry in entries if not entry.is_file() or entry.suffix.lower() not in SUFFIXES]
    problems = [f"{name} is not a file that ends in {', '.join(SUFFIXES)}" for name in other]
    refuse(str(path), problems if entries else ["there are no images"])
    return [entry.name for entry in entries], _split([(entry, 0, entry.name) for entry in entries], form).inputs


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _named(folder: Path, name: str) -> Path | None:
    """The folder of this name in any case, exactly as written if there is one; ``None`` if there is none."""
    found = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.casefold() == name.casefold()]
    return min(found, key=lambda entry: (entry.name != name, entry.name), default=None)


def _files(folder: Path, names: Sequence[str]) -> list[_File]:
    told_apart = len({name.casefold() for name in names}) == len(names)
    # A class may have no examples, and a name such as ".." is not one.
    places = {name: place for name in names if name.strip(".") and (place := _named(folder, name))}
    places = {name: place for name, place in places.items() if told_apart or place.name == name}
    problems = []
    if undeclared := [entry for entry in _visible(folder) if entry not in places.values()]:
        problems.append(f"{_entries(undeclared)} not named after a declared class; remove or declare what is there")
    found: list[_File] = []
    for target, name in enumerate(names):
        paths = _visible(places[name]) if name in places else []
        if other := [entry for entry in paths if entry.suffix.lower() not in SUFFIXES]:
            problems.append(f"{name}: {_entries(other)} no file that ends in {', '.join(SUFFIXES)}")
        found += [(path, target, f"image {k} of {name} in {folder.name}") for k, path in enumerate(paths, start=1)]
    if not found:
        problems.append("there are no images in the folders of the declared classes")
    refuse(str(folder), problems)
    return found


def _entries(found: Sequence[object]) -> str:
    return "1 entry is" if len(found) == 1 else f"{len(found)} entries are"


def _first(file: _File) -> ImageForm:
    """The form that all images must have where none is declared."""
    mode, size = _opened(file, lambda image: (image.mode, image.size))
    if mode in ("L", "RGB"):
        return ImageForm(*size, grey=mode == "L", fitted=False)
    raise DataError(
        f"{file[2]} is neither 8-bit grey nor 8-bit colour without transparency; convert the images, or declare "
        "image_size to bring all to one size and to colour"
    )


def _split(found: Sequence[_File], form: ImageForm) -> Split:
    images = np.zeros((len(found), form.height, form.width) + (() if form.grey else (3,)), np.uint8)
    colour, problems = "grey" if form.grey else "colour", []
    strict = f"is not of {form.width} x {form.height} pixels in {colour}"
    for index, file in enumerate(found):
        try:
            pixels = _opened(file, form.pixels)
        except DataError as error:
            problems.append(str(error))
            continue
        if pixels is None:
            problems.append(f"{file[2]} {'has more than 8 bits a channel' if form.fitted else strict}")
        else:
            images[index] = pixels
    way_out = "" if form.fitted else "; a declared image_size brings all to one size"
    refuse(f"images, numbered from 1 in the order of their names within their class{way_out}", problems)
    return Split(unit_pixels(images), np.array([target for _, target, _ in found], dtype=np.int64))


def _opened(file: _File, of: Callable[[Image.Image], Value]) -> Value:
    """What the function says of the image; a ``DataError`` if it is damaged."""
    from PIL import Image  # imported here, as most commands read no image

    try:
        with Image.open(file[0], formats=("PNG", "JPEG")) as image:
            return of(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(f"{file[2]} is damaged, or neither PNG nor JPEG") from error
