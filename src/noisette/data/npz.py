"""Reads the user's own NPZ: arrays ``x_train, y_train`` and optionally ``x_test, y_test``; or ``X, y``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from noisette.data import files
from noisette.data.dataset import DataSet, Split, unit_pixels
from noisette.data.declaration import Declaration
from noisette.data.errors import DataError, in_rows, refuse
from noisette.data.values import codes

NAMES = ("x_train", "y_train", "x_test", "y_test", "X", "y")


def read(path: Path, declaration: Declaration) -> DataSet:
    """The arrays as a data set: inputs (n, features), (n, h, w) or (n, c, h, w); labels integers or class names.

    Images of bytes are scaled by their range to [0, 1]; other arrays are used unchanged. Values that are not finite
    are accepted: training leaves such an example out of every sum. Nothing is unpickled.

    Raises:
        DataError: facts are undeclared, the file is damaged, or arrays are absent or have another shape or type.
    """
    declaration.refuse_csv_facts(path.name, test_place="in x_test and y_test")
    declaration.refuse_image_facts(path.name)
    classes, size = declaration.public_facts(path.name)
    arrays = _arrays(path)
    pairs = [("x_train", "y_train") if "x_train" in arrays or "y_train" in arrays else ("X", "y")]
    if "x_test" in arrays or "y_test" in arrays:
        pairs.append(("x_test", "y_test"))
    refuse(path.name, [problem for x, y in pairs for problem in _problems(arrays, x, y, declaration)])
    train, *test = (Split(_inputs(arrays[x]), _targets(arrays[y], declaration)) for x, y in pairs)
    return DataSet(
        path.name, train, test[0] if test else None, classes=classes, declared_size=size, target=declaration.target
    )


def _arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files if name in NAMES}
    except files.DAMAGED_NPZ as error:  # a TypeError if the file holds a single array
        reason = (
            f" ({error.strerror})" if isinstance(error, OSError) and error.strerror else ""
        )  # others quote the file
        raise DataError(f"{path} is not a valid NPZ of plain arrays{reason}; save it with numpy.savez") from error


def _problems(arrays: Mapping[str, np.ndarray], x: str, y: str, declaration: Declaration) -> list[str]:
    """Messages on the arrays of one split, called ``x`` and ``y``: absent, or of another shape or type."""
    absent = [name for name in (x, y) if name not in arrays]
    if absent:
        found = ", ".join(sorted(arrays)) or "none"
        return [f"no {' and no '.join(absent)}; name the arrays {', '.join(NAMES)} (found {found})"]
    problems = []
    if arrays[x].ndim not in (2, 3, 4) or arrays[x].dtype.kind not in "buif":
        problems.append(
            f"{x} is {arrays[x].dtype} of shape {arrays[x].shape}; "
            "expected real numbers, (n, features), (n, h, w) or (n, c, h, w)"
        )
    if declaration.target is not None:
        if arrays[y].ndim != 1 or arrays[y].dtype.kind not in "uif" or not np.isfinite(arrays[y]).all():
            problems.append(f"{y} is {arrays[y].dtype} of shape {arrays[y].shape}; expected finite real numbers, (n,)")
    elif arrays[y].ndim != 1 or arrays[y].dtype.kind not in "buiU":
        problems.append(f"{y} is {arrays[y].dtype} of shape {arrays[y].shape}; expected integers or class names, (n,)")
    elif arrays[y].dtype.kind == "U" and (unknown := np.flatnonzero(_targets(arrays[y], declaration) < 0).tolist()):
        problems.append(
            f"{y}: none of the declared classes {in_rows(unknown)}; declare classes as the list of their names"
        )
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
    if array.dtype.kind == "U":
        return codes(array.tolist(), declaration.class_names)
    return array.astype(np.int64)
