"""Reads the user's own arrays (.npz) and images (a folder), as declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from noisette.data import files
from noisette.data.columns import codes
from noisette.data.dataset import DataError, DataSet, Split, in_rows, refuse, unit_pixels
from noisette.data.declaration import MODES, Declaration, ImageForm

if TYPE_CHECKING:
    from PIL import Image

ARRAYS = ("x_train", "y_train", "x_test", "y_test", "X", "y")
SUFFIXES = (".jpeg", ".jpg", ".png")


# Arrays


def read_arrays(path: Path, declaration: Declaration) -> DataSet:
    """The arrays ``x_train, y_train`` and optionally ``x_test, y_test``, or ``X, y``, of an NPZ as a data set.

    Inputs are (n, features), (n, h, w) or (n, c, h, w), labels integers or class names. Images of bytes are scaled by
    their range to [0, 1]; other arrays are used unchanged. Nothing is unpickled.

    Raises:
        DataError: facts are undeclared, the file is damaged, or arrays are absent or have another shape or type.
    """
    classes, size = declaration.public_facts(path.name, test_place="in x_test and y_test")
    try:
        arrays = files.plain_arrays(path, ARRAYS)
    except files.DAMAGED_NPZ as error:  # a TypeError if the file holds a single array
        why = f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""  # others quote the file
        raise DataError(f"{path} is not a valid NPZ of plain arrays{why}; save it with numpy.savez") from error
    pairs = [("x_train", "y_train") if "x_train" in arrays or "y_train" in arrays else ("X", "y")]
    if "x_test" in arrays or "y_test" in arrays:
        pairs.append(("x_test", "y_test"))
    refuse(path.name, [problem for x, y in pairs for problem in _problems(arrays, x, y, declaration)])
    train, *test = (Split(_inputs(arrays[x]), _targets(arrays[y], declaration)) for x, y in pairs)
    return DataSet(path.name, train, test[0] if test else None, classes, size, target=declaration.target)


def _problems(arrays: Mapping[str, np.ndarray], x: str, y: str, declaration: Declaration) -> list[str]:
    """Messages on the arrays of one split, called ``x`` and ``y``: absent, or of another shape or type."""
    absent = [name for name in (x, y) if name not in arrays]
    if absent:
        found = ", ".join(sorted(arrays)) or "none"
        return [f"no {' and no '.join(absent)}; name the arrays {', '.join(ARRAYS)} (found {found})"]
    inputs, targets, problems = arrays[x], arrays[y], []
    kind = targets.dtype.kind if targets.ndim == 1 else ""
    if inputs.ndim not in (2, 3, 4) or inputs.dtype.kind not in "buif":
        expected = "real numbers, (n, features), (n, h, w) or (n, c, h, w)"
        problems.append(f"{x} is {inputs.dtype} of shape {inputs.shape}; expected {expected}")
    if declaration.target is not None:
        expected = None if kind and kind in "uif" and np.isfinite(targets).all() else "finite real numbers, (n,)"
    else:
        expected = None if kind and kind in "buiU" else "integers or class names, (n,)"
    if expected:
        problems.append(f"{y} is {targets.dtype} of shape {targets.shape}; expected {expected}")
    elif kind == "U" and (unknown := np.flatnonzero(_targets(targets, declaration) < 0).tolist()):
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


# Images


@dataclass(frozen=True)
class _File:
    """An image file; its name may be private, so errors give its class and its position in the sorted folder."""

    path: Path
    target: int
    position: str

    def open(self) -> Image.Image:
        """The image; its header is read now, its pixels on access."""
        from PIL import Image  # imported here, as most commands read no image

        return Image.open(self.path, formats=("PNG", "JPEG"))


def read_images(path: Path, declaration: Declaration) -> DataSet:
    """The images as a data set, inputs (n, c, h, w) in [0, 1]; the folders are named after the declared classes.

    They lie in ``train/CLASS`` and optionally ``test/CLASS``, or in ``CLASS``. Each image is brought to the declared
    form; without one, all must be 8-bit grey, or all 8-bit colour, and have the size of the first.

    Raises:
        DataError: lists what is undeclared, or what is no such folder or image, without names of files.
    """
    classes, size = declaration.public_facts(path.name, test_place="in the folder test beside train", images=True)
    names = declaration.class_names
    train_place, test_place = _named(path, "train"), _named(path, "test")
    if train_place is None:
        if test_place is not None or not any(_named(path, name) for name in names):
            raise DataError(
                f"there is no folder {path / 'train'}; put images into {path / 'train'}/CLASS/ or {path}/CLASS/, a "
                "folder for each declared class"
            )
        train_place = path
    train = _files(train_place, names)
    test = _files(test_place, names) if test_place else None
    form = declaration.images or _first(train[0])
    return DataSet(path.name, _split(train, form), _split(test, form) if test is not None else None, classes, size)


def unlabelled(path: Path, form: ImageForm) -> tuple[list[str], np.ndarray]:
    """The names of the images that lie in a folder, in order, and the images, (n, c, h, w) in [0, 1].

    Raises:
        DataError: there are no images, or a list of every file that is not such an image.
    """
    entries = _visible(path)
    other = [entry.name for entry in entries if not entry.is_file() or entry.suffix.lower() not in SUFFIXES]
    problems = [f"{name} is not a file that ends in {', '.join(SUFFIXES)}" for name in other]
    refuse(str(path), problems if entries else ["there are no images"])
    return [entry.name for entry in entries], _split([_File(entry, 0, entry.name) for entry in entries], form).inputs


def _visible(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _named(folder: Path, name: str) -> Path | None:
    """The folder of this name in any case, exactly as written if there is one; ``None`` if there is none."""
    found = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.casefold() == name.casefold()]
    return min(found, key=lambda entry: (entry.name != name, entry.name), default=None)


def _files(folder: Path, names: Sequence[str]) -> list[_File]:
    """Every image file of one split, class by class in the declared order, then by name."""
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
        found += [
            _File(entry, target, f"image {position} of {name} in {folder.name}")
            for position, entry in enumerate(paths, start=1)
        ]
    if not found:
        problems.append("there are no images in the folders of the declared classes")
    refuse(str(folder), problems)
    return found


def _entries(found: Sequence[object]) -> str:
    return "1 entry is" if len(found) == 1 else f"{len(found)} entries are"


def _first(file: _File) -> ImageForm:
    """The form that all images must have where none is declared."""
    try:
        with file.open() as image:
            if image.mode in MODES:
                return ImageForm(*image.size, grey=image.mode == "L", fitted=False)
    except _damage() as error:
        raise DataError(f"{file.position} is damaged, or neither PNG nor JPEG") from error
    raise DataError(
        f"{file.position} is neither 8-bit grey nor 8-bit colour without transparency; convert the images, or declare "
        "image_size to bring all to one size and to colour"
    )


def _split(files: Sequence[_File], form: ImageForm) -> Split:
    """Reads the images, each of which must have this form or is brought to it."""
    images = np.zeros((len(files), form.height, form.width) + (() if form.grey else (3,)), np.uint8)
    problems = []
    unfit = "has more than 8 bits a channel" if form.fitted else f"is not of {form}"
    for index, file in enumerate(files):
        try:
            with file.open() as image:
                pixels = form.pixels(image)
        except _damage():
            problems.append(f"{file.position} is damaged, or neither PNG nor JPEG")
            continue
        if pixels is None:
            problems.append(f"{file.position} {unfit}")
        else:
            images[index] = pixels
    way_out = "" if form.fitted else "; a declared image_size brings all to one size"
    refuse(f"images, numbered from 1 in the order of their names within their class{way_out}", problems)
    return Split(unit_pixels(images), np.array([file.target for file in files], dtype=np.int64))


def _damage() -> tuple[type[Exception], ...]:
    """What Pillow raises for a damaged file."""
    from PIL import Image

    return OSError, SyntaxError, ValueError, Image.DecompressionBombError
