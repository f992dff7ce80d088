from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisette.data import DataError, Declaration, load
from noisette.data.declaration import ImageForm
from noisette.data.own_files import unlabelled

DECLARED = Declaration(classes=("cat", "dog"), size=20)
GREY = ImageForm(4, 3, grey=True, fitted=False)


def save(path: Path, value: int | tuple[int, int, int], *, extent: tuple[int, int] = (4, 3), mode: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode or ("L" if isinstance(value, int) else "RGB"), extent, value).save(path)


def refusal(folder: Path, declaration: Declaration = DECLARED) -> str:
    with pytest.raises(DataError) as caught:
        load(str(folder), declaration=declaration)
    return str(caught.value)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    save(folder / "train" / "cat" / "b.png", 51)
    save(folder / "train" / "cat" / "a.png", 0)
    save(folder / "train" / "dog" / "c.PNG", 255)
    return folder


def test_grey_images(pets: Path) -> None:
    (pets / "train" / "cat" / ".hidden").write_text("ignored")
    found = load(str(pets), declaration=DECLARED)
    assert (found.name, found.classes, found.declared_size, found.test) == ("pets", 2, 20, None)
    assert found.train.inputs.shape == (3, 1, 3, 4)
    assert found.train.inputs.dtype == np.float32
    np.testing.assert_allclose(found.train.inputs.mean((1, 2, 3)), [0, 0.2, 1], rtol=1e-6)
    assert found.train.targets.tolist() == [0, 0, 1]


def test_colour_images_and_a_test_split(tmp_path: Path) -> None:
    save(tmp_path / "pets" / "train" / "dog" / "a.png", (255, 51, 0))
    save(tmp_path / "pets" / "test" / "cat" / "a.jpeg", (255, 255, 255))
    found = load(str(tmp_path / "pets"), declaration=DECLARED)
    assert found.test is not None
    np.testing.assert_allclose(found.train.inputs[0, :, 1, 2], [1, 0.2, 0], rtol=1e-6)
    assert (found.train.targets.tolist(), found.test.targets.tolist()) == ([1], [0])
    np.testing.assert_allclose(found.test.inputs, 1, atol=0.02)


def test_numbered_classes(tmp_path: Path) -> None:
    save(tmp_path / "train" / "2" / "a.png", 9)
    assert load(str(tmp_path), declaration=Declaration(classes=3, size=9)).train.targets.tolist() == [2]


def test_the_order_of_classes_is_the_declared_one(pets: Path) -> None:
    found = load(str(pets), declaration=Declaration(classes=("dog", "cat"), size=20))
    assert found.train.targets.tolist() == [0, 1, 1]


def test_folders_and_files_that_do_not_belong(pets: Path) -> None:
    save(pets / "train" / "CANARY" / "a.png", 9)
    (pets / "train" / "dog" / "CANARY.txt").write_text("hello")
    message = refusal(pets)
    assert message.startswith(f"{pets}/train: 2 problems")
    assert "1 entry is not named after a declared class" in message
    assert "dog: 1 entry is no file that ends in .jpeg, .jpg, .png" in message
    assert "CANARY" not in message


def test_damaged_and_odd_images_are_listed_without_their_names(pets: Path) -> None:
    whole = (pets / "train" / "cat" / "b.png").read_bytes()
    (pets / "train" / "cat" / "b_CANARY.png").write_bytes(b"no image")
    (pets / "train" / "dog" / "a_CANARY.png").write_bytes(whole[:50])
    save(pets / "train" / "dog" / "b_CANARY.png", 1, extent=(3, 4))
    save(pets / "train" / "dog" / "d_CANARY.png", (1, 1, 1))
    message = refusal(pets)
    assert "CANARY" not in message
    assert [line.strip() for line in message.splitlines()] == [
        "images, numbered from 1 in the order of their names within their class; a declared image_size brings all to "
        "one size: 4 problems",
        "image 3 of cat in train is damaged, or neither PNG nor JPEG",
        "image 1 of dog in train is damaged, or neither PNG nor JPEG",
        "image 2 of dog in train is not of 4 x 3 pixels in grey",
        "image 4 of dog in train is not of 4 x 3 pixels in grey",
    ]


def test_first_image_damaged(pets: Path) -> None:
    (pets / "train" / "cat" / "a.png").write_bytes(b"no image")
    assert "image 1 of cat in train is damaged, or neither PNG nor JPEG" in refusal(pets)


def test_another_format_under_a_png_name(pets: Path) -> None:
    Image.new("L", (4, 3)).save(pets / "train" / "cat" / "a.png", format="BMP")
    assert "image 1 of cat in train is damaged, or neither PNG nor JPEG" in refusal(pets)


@pytest.mark.parametrize("mode", ["RGBA", "P", "1", "LA", "I;16"])
def test_other_kinds_of_pixels(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "train" / "cat" / "a.png"
    path.parent.mkdir(parents=True)
    Image.new(mode, (4, 3)).save(path)
    assert "neither 8-bit grey nor 8-bit colour without transparency; convert" in refusal(tmp_path)


def test_a_class_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    save(tmp_path / "pets" / "train" / "cat" / "a.png", 9)
    save(tmp_path / "pets" / "b.png", 9)
    declared = Declaration(classes=("cat", "..", str(tmp_path / "pets")), size=9)
    assert len(load(str(tmp_path / "pets"), declaration=declared).train.inputs) == 1


def test_no_images(tmp_path: Path) -> None:
    assert "train; put images into" in refusal(tmp_path)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    assert "there are no images" in refusal(tmp_path)


def test_undeclared(pets: Path) -> None:
    message = refusal(pets, Declaration())
    assert "declare classes" in message
    assert "declare size" in message


def test_csv_facts_are_refused(pets: Path) -> None:
    declared = Declaration(classes=("cat", "dog"), size=1, test=pets, categories={"b": ("c",)})
    assert "the folder test beside train" in refusal(pets, declared)


def test_classes_without_a_folder_train_and_names_in_any_case(tmp_path: Path) -> None:
    for place in ("Cat/a.PNG", "dog/b.png"):
        (tmp_path / place).parent.mkdir()
        Image.new("L", (2, 2), 255).save(tmp_path / place, format="PNG")
    found = load(str(tmp_path), declaration=Declaration(classes=("cat", "DOG"), size=2))
    assert found.train.targets.tolist() == [0, 1]
    assert found.test is None


def test_folders_train_and_test_in_any_case(tmp_path: Path) -> None:
    for place in ("Train/cat/a.png", "TEST/Cat/a.png"):
        (tmp_path / place).parent.mkdir(parents=True)
        Image.new("L", (2, 2)).save(tmp_path / place)
    found = load(str(tmp_path), declaration=Declaration(classes=("cat", "dog"), size=2))
    assert found.test is not None
    assert len(found.test.targets) == 1


def test_classes_that_differ_in_case_alone_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    Image.new("L", (2, 2)).save(tmp_path / "cat" / "a.png")
    found = load(str(tmp_path), declaration=Declaration(classes=("Cat", "cat"), size=2))
    assert found.train.targets.tolist() == [1]


def test_a_folder_test_needs_one_to_train_with(tmp_path: Path) -> None:
    for place in ("cat/a.png", "test/cat/a.png"):
        (tmp_path / place).parent.mkdir(parents=True)
        Image.new("L", (2, 2)).save(tmp_path / place)
    with pytest.raises(DataError, match=r"there is no folder .*train"):
        load(str(tmp_path), declaration=Declaration(classes=("cat", "dog"), size=2))


def test_images_without_labels_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name, value in {"c.png": 255, "a.png": 0, "B.jpg": 51}.items():
        save(tmp_path / name, value)
    (tmp_path / ".DS_Store").write_bytes(b"hidden")
    names, images = unlabelled(tmp_path, GREY)
    assert names == ["B.jpg", "a.png", "c.png"]
    assert images.shape == (3, 1, 3, 4)
    np.testing.assert_allclose(images.mean((1, 2, 3)), [0.2, 0, 1], atol=0.01)


def test_every_image_without_a_label_that_does_not_fit_is_named(tmp_path: Path) -> None:
    save(tmp_path / "a.png", (1, 1, 1))
    save(tmp_path / "b.png", 1)
    save(tmp_path / "c.png", (1, 1, 1), extent=(3, 4))
    (tmp_path / "d.png").write_bytes(b"no image")
    with pytest.raises(DataError) as caught:
        unlabelled(tmp_path, ImageForm(4, 3, fitted=False))
    assert [line.strip() for line in str(caught.value).splitlines()][1:] == [
        "b.png is not of 4 x 3 pixels in colour",
        "c.png is not of 4 x 3 pixels in colour",
        "d.png is damaged, or neither PNG nor JPEG",
    ]


def test_other_files_and_folders_among_images_without_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no images"):
        unlabelled(tmp_path, GREY)
    (tmp_path / "cat.png").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError) as caught:
        unlabelled(tmp_path, GREY)
    assert all(f"{name} is not a file that ends in " in str(caught.value) for name in ("notes.txt", "cat.png"))
