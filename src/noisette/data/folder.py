"""Reads a folder of images: ``DIR/CLASS/*.png``, or ``DIR/train/CLASS/*.png`` and ``DIR/test/CLASS/*.png``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from noisette.data.dataset import DataSet, Split, unit_pixels
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError, refuse
from noisette.data.image_form import ImageForm

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset({".png", ".jpg", ".jpeg"})


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


def read(path: Path, declaration: Declaration) -> DataSet:
    """The images as a data set, inputs (n, c, h, w) in [0, 1]; the folders are named after the declared classes.

    These lie in a folder ``train`` and optionally ``test``, or in ``path`` itself. Names of folders count the same in
    upper and lower case. Each image is brought to the declared form; without one, all images must be 8-bit grey, or all
    8-bit colour, and have the size of the first. Hidden files are ignored.

    Raises:
        DataError: lists what is undeclared; or every folder that is not a declared class and every file that is not
            such an image. The message contains no names of files.
    """
    declaration.refuse_csv_facts(path.name, test_place="in the folder test beside train")
    classes, size = declaration.public_facts(path.name)
    if declaration.target is not None:
        raise DataError(f"{path.name} is a folder of images, which have classes; declare these instead of a target")
    names = declaration.class_names
    parts = {part: _named(path, part) for part in ("train", "test")}
    train = _files(parts["train"] or _whole(path, names, parts["test"]), names)
    test = _files(parts["test"], names) if parts["test"] else None
    form = declaration.images or _first(train[0])
    train_split, test_split = _split(train, form), _split(test, form) if test is not None else None
    return DataSet(name=path.name, train=train_split, test=test_split, classes=classes, declared_size=size)


def unlabelled(path: Path, form: ImageForm) -> tuple[list[str], np.ndarray]:
    """The names of the images that lie in a folder, in order, and the images, (n, c, h, w) in [0, 1].

    Hidden files are ignored.

    Args:
        path: the folder.
        form: what the images must have, or are brought to.

    Raises:
        DataError: there are no images, or a list of every file that is not such an image.
    """
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    suffixes = ", ".join(sorted(SUFFIXES))
    other = [f"{entry.name} is not a file that ends in {suffixes}" for entry in entries if not _is_image(entry)]
    refuse(str(path), other if entries else ["there are no images"])
    return [entry.name for entry in entries], _split([_File(entry, 0, entry.name) for entry in entries], form).inputs


def _is_image(entry: Path) -> bool:
    return entry.is_file() and entry.suffix.lower() in SUFFIXES


def _named(folder: Path, name: str) -> Path | None:
    """The folder of this name in any case, exactly as written if there is one; ``None`` if there is none."""
    found = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.casefold() == name.casefold()]
    return min(found, key=lambda entry: (entry.name != name, entry.name), default=None)


def _whole(path: Path, names: Sequence[str], test: Path | None) -> Path:
    """The folder itself, if it holds the folders of the classes.

    Raises:
        DataError: it does not, or there is a folder of test images without one to train with.
    """
    if test is None and any(_named(path, name) for name in names):
        return path
    raise DataError(
        f"there is no folder {path / 'train'}; put images into {path / 'train'}/CLASS/ or {path}/CLASS/, a folder "
        "for each declared class"
    )


def _present(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """The declared classes that have a folder, with its name, which may be written in another case."""
    told_apart = len({name.casefold() for name in names}) == len(names)
    found = {name: _named(folder, name) for name in names if name.strip(".")}
    return {name: place.name for name, place in found.items() if place and (told_apart or place.name == name)}


def _files(folder: Path, names: Sequence[str]) -> list[_File]:
    """Every image file of one split, class by class in the declared order, then by name."""
    problems = []
    present = _present(folder, names)
    entries = {entry.name for entry in folder.iterdir()}
    undeclared = [entry for entry in entries.difference(present.values()) if not entry.startswith(".")]
    if undeclared:
        problems.append(f"{_entries(undeclared)} not named after a declared class; remove or declare what is there")
    found: list[_File] = []
    for target, name in enumerate(names):
        if name not in present:  # a class may have no examples, and a name such as ".." is not a class
            continue
        paths = sorted(entry for entry in (folder / present[name]).glob("*") if not entry.name.startswith("."))
        other = [entry for entry in paths if entry.suffix.lower() not in SUFFIXES]
        if other:
            problems.append(f"{name}: {_entries(other)} no file that ends in {', '.join(sorted(SUFFIXES))}")
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
            if form := ImageForm.of(image):
                return form
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
    for index, file in enumerate(files):
        try:
            with file.open() as image:
                pixels = form.pixels(image)
        except _damage():
            problems.append(f"{file.position} is damaged, or neither PNG nor JPEG")
            continue
        if pixels is not None:
            images[index] = pixels
        elif form.fitted:
            problems.append(f"{file.position} has more than 8 bits a channel")
        else:
            problems.append(f"{file.position} is not of {form}")
    way_out = "" if form.fitted else "; a declared image_size brings all to one size"
    refuse(f"images, numbered from 1 in the order of their names within their class{way_out}", problems)
    return Split(unit_pixels(images), np.array([file.target for file in files], dtype=np.int64))


def _damage() -> tuple[type[Exception], ...]:
    """What Pillow raises for a damaged file."""
    from PIL import Image

    return OSError, SyntaxError, ValueError, Image.DecompressionBombError
