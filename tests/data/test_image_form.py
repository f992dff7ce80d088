from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisette.data import DataError, Declaration, load
from noisette.data.declaration import ImageForm

DECLARED = Declaration(classes=("cat", "dog"), size=20, images=ImageForm(4, 2))
_ORIENTATION, _TURNED = 0x0112, 6  # of EXIF: the camera was turned by a quarter


def saved(folder: Path, image: Image.Image, name: str = "a.png", *, exif: Image.Exif | None = None) -> Path:
    path = folder / "cat" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif) if exif else image.save(path)
    return path


def pixels(folder: Path, declaration: Declaration = DECLARED) -> np.ndarray:
    return load(str(folder), declaration=declaration).train.inputs


def test_images_of_any_size_and_colour_are_brought_to_the_declared_form(tmp_path: Path) -> None:
    for index, (mode, extent) in enumerate(
        [("L", (8, 4)), ("RGB", (5, 5)), ("P", (40, 3)), ("1", (4, 2)), ("CMYK", (9, 9))]
    ):
        saved(tmp_path, Image.new(mode, extent), f"{index}.jpg" if mode == "CMYK" else f"{index}.png")
    assert pixels(tmp_path).shape == (5, 3, 2, 4)
    assert pixels(tmp_path, replace(DECLARED, images=ImageForm(4, 2, grey=True))).shape == (5, 1, 2, 4)


def test_an_image_is_scaled_to_cover_the_size_and_cut_to_its_middle(tmp_path: Path) -> None:
    columns = np.repeat(np.array([0, 0, 100, 100, 100, 100, 200, 200], np.uint8)[None, :], 2, axis=0)
    saved(tmp_path, Image.fromarray(columns))  # 8 x 2: the outer two columns on each side are cut away
    np.testing.assert_allclose(pixels(tmp_path) * 255, 100, atol=1e-4)


def test_an_image_is_turned_as_its_camera_says(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[_ORIENTATION] = _TURNED
    upper = np.zeros((4, 2), np.uint8)
    upper[:, 0] = 255  # the left half; turned by a quarter to the right it is the upper half
    saved(tmp_path, Image.fromarray(upper), exif=exif)
    found = pixels(tmp_path)[0, 0]
    np.testing.assert_allclose(found, [[1] * 4, [0] * 4])


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path: Path, mode: str) -> None:
    clear = Image.new("RGBA", (4, 2), (10, 20, 30, 0)).convert(mode if mode != "P" else "RGBA")
    if mode == "P":
        clear = Image.new("P", (4, 2), 0)
        clear.info["transparency"] = 0
    saved(tmp_path, clear)
    np.testing.assert_allclose(pixels(tmp_path), 1)


def test_what_becomes_of_an_image_does_not_depend_on_the_others(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for index in range(4):
        saved(tmp_path / "all", Image.fromarray(draw.integers(0, 256, (7 + index, 9, 3), np.uint8)), f"{index}.png")
    together = pixels(tmp_path / "all")
    for index in range(4):
        with Image.open(tmp_path / "all" / "cat" / f"{index}.png") as image:
            saved(tmp_path / f"alone-{index}", image)
        np.testing.assert_array_equal(pixels(tmp_path / f"alone-{index}")[0], together[index])


def test_more_than_8_bits_are_refused(tmp_path: Path) -> None:
    saved(tmp_path, Image.new("I;16", (8, 8)))
    with pytest.raises(DataError, match="has more than 8 bits a channel"):
        pixels(tmp_path)


def test_the_form_is_for_folders_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,label\n1,cat\n")
    with pytest.raises(DataError, match="for folders of images only"):
        load(str(path), declaration=DECLARED)


@pytest.mark.parametrize("extent", [(0, 4), (4, -1)])
def test_lengths_below_one_are_refused(extent: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        ImageForm(*extent)
