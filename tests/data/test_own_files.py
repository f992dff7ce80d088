"""The user's own arrays and folders of images, and names of built-in sets."""

import io
import math
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from noisette.data import DataError, Declaration, load, names
from noisette.data.columns import Columns, ImageForm
from noisette.data.dataset import Target
from noisette.data.load import unlabelled
from noisette.data.words import Numbering

DECLARED = Declaration(classes=3, size=50)
PETS = Declaration(classes=("cat", "dog"), size=20)
FITTED = Declaration(classes=("cat", "dog"), size=20, images=ImageForm(4, 2))
GREY = ImageForm(4, 3, grey=True, fitted=False)


def refusal(path: str | Path, declaration: Declaration = DECLARED) -> str:
    with pytest.raises(DataError) as caught:
        load(str(path), declaration=declaration)
    return str(caught.value)


def written(tmp_path: Path, **arrays: np.ndarray) -> str:
    np.savez(tmp_path / "mine.npz", **arrays)  # pyright: ignore[reportArgumentType]
    return str(tmp_path / "mine.npz")


def test_train_and_test(tmp_path: Path) -> None:
    x = np.array([[1.0, 300.0], [np.nan, np.inf]])  # values that are not finite are accepted
    path = written(tmp_path, x_train=x, y_train=np.array([2, 0]), x_test=x[:1], y_test=np.array([1], np.uint8))
    found = load(path, declaration=DECLARED)
    assert (found.name, found.classes, found.declared_size, found.note) == ("mine.npz", 3, 50, "")
    assert (found.train.inputs.dtype, found.train.targets.dtype) == (np.float32, np.int64)
    np.testing.assert_array_equal(found.train.inputs, x)
    assert (found.train.targets.tolist(), found.test.targets.tolist()) == ([2, 0], [1])


@pytest.mark.parametrize(
    ("x", "becomes"),
    [
        (np.full((4, 2), 200, np.uint8), np.full((4, 2), 200)),  # bytes that are no image are numbers like any others
        (np.full((4, 1, 2, 2), 77.0), np.full((4, 1, 2, 2), 77)),
        (np.full((4, 5, 6), 51, np.uint8), np.full((4, 1, 5, 6), 0.2)),
        (np.arange(360).astype(np.uint8).reshape(4, 3, 5, 6), np.arange(360).reshape(4, 3, 5, 6) % 256 / 255),
    ],
)
def test_images_of_bytes_alone_are_scaled(tmp_path: Path, x: np.ndarray, becomes: np.ndarray) -> None:
    found = load(written(tmp_path, X=x, y=np.zeros(4, bool)), declaration=DECLARED)
    assert found.test is None
    assert found.train.inputs.shape == becomes.shape
    np.testing.assert_allclose(found.train.inputs, becomes, rtol=1e-6)


def test_class_names_and_numbers_to_predict(tmp_path: Path) -> None:
    path = written(tmp_path, X=np.ones((3, 2)), y=np.array(["b", "a", "b"]))
    assert load(path, declaration=Declaration(classes=("a", "b"), size=3)).train.targets.tolist() == [1, 0, 1]
    assert "y: none of the declared classes in rows 1, 2 and 3; declare classes" in refusal(path)
    declared = Declaration(target=Target(0, 100), size=2)
    path = written(tmp_path, X=np.ones((2, 3)), y=np.array([50, 1000]))
    assert load(path, declaration=declared).train.targets.tolist() == [0, 1]
    path = written(tmp_path, X=np.ones((2, 3)), y=np.array([50, math.nan]))
    assert "expected finite real numbers" in refusal(path, declared)


FITTING = {"X": np.ones((2, 2)), "y": np.array([0, 1])}


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x_train": np.ones((2, 2))}, "no y_train; name the arrays"),
        ({"features": np.ones((2, 2))}, "no X and no y; name the arrays"),
        (FITTING | {"x_test": np.ones((2, 2))}, "no y_test"),
        (FITTING | {"X": np.ones(2)}, "X is float64 of shape (2,); expected real numbers"),
        (FITTING | {"y": np.array([0.0, 1.0])}, "y is float64 of shape (2,); expected integers or"),
        (FITTING | {"y": np.array([0])}, "train has 2 inputs but 1 labels"),
        (FITTING | {"y": np.array([0, 3])}, "train has 1 labels outside 0..2, the first at index 1"),
        (FITTING | {"x_test": np.ones((1, 3)), "y_test": np.array([0])}, "train have shape (2,), those of test (3,)"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    assert says in refusal(written(tmp_path, **arrays))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    message = refusal(written(tmp_path, X=np.array([Trap()], dtype=object), y=np.zeros(1, int)))
    assert message.endswith("mine.npz is not a valid NPZ of plain arrays; save it with numpy.savez")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"no archive", pickle.dumps([1, 2]), None])
def test_not_an_npz(tmp_path: Path, content: bytes | None) -> None:
    path = Path(written(tmp_path, X=np.ones((100, 5)), y=np.zeros(100, int)))
    path.write_bytes(path.read_bytes()[:1000] if content is None else content)
    assert "not a valid NPZ" in refusal(path)


def test_a_huge_declared_array_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50, 2)})
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as opened:
        opened.writestr("X.npy", header.getvalue() + bytes(16))
    assert "not a valid NPZ" in refusal(tmp_path / "mine.npz")


def test_what_is_undeclared_or_has_no_effect(tmp_path: Path) -> None:
    path = written(tmp_path, X=np.ones((1, 1)), y=np.zeros(1, int))
    save(tmp_path / "pets" / "cat" / "a.png", 1)
    for place, where in ((path, "x_test and y_test"), (tmp_path / "pets", "the folder test beside train")):
        assert "declare classes" in refusal(place, Declaration(size=3))
        assert "declare size" in refusal(place, Declaration(classes=3))
        message = refusal(place, Declaration(classes=3, size=1, test=tmp_path, columns=Columns({}), users="a"))
        assert "3 problems" in message
        assert where in message
    (tmp_path / "a.csv").write_text("x,label\n1,cat\n")
    for place in (path, tmp_path / "a.csv"):
        assert "for folders of images only" in refusal(place, FITTED)
    assert "images, which have classes" in refusal(tmp_path, Declaration(target=Target(0, 1), size=3))


def save(path: Path, value: int | tuple[int, int, int], *, extent: tuple[int, int] = (4, 3), mode: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode or ("L" if isinstance(value, int) else "RGB"), extent, value).save(path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    folder = tmp_path / "pets"
    save(folder / "train" / "cat" / "b.png", 51)
    save(folder / "train" / "cat" / "a.png", 0)
    save(folder / "train" / "dog" / "c.PNG", 255)
    return folder


def test_grey_images(pets: Path) -> None:
    (pets / "train" / "cat" / ".hidden").write_text("ignored")
    found = load(str(pets), declaration=PETS)
    assert (found.name, found.classes, found.declared_size, found.test) == ("pets", 2, 20, None)
    assert (found.train.inputs.shape, found.train.inputs.dtype) == ((3, 1, 3, 4), np.float32)
    np.testing.assert_allclose(found.train.inputs.mean((1, 2, 3)), [0, 0.2, 1], rtol=1e-6)
    assert found.train.targets.tolist() == [0, 0, 1]
    other = load(str(pets), declaration=replace(PETS, classes=("dog", "cat")))
    assert other.train.targets.tolist() == [0, 1, 1], "the order of classes is the declared one"


def test_colour_images_and_a_test_split(tmp_path: Path) -> None:
    save(tmp_path / "pets" / "train" / "dog" / "a.png", (255, 51, 0))
    save(tmp_path / "pets" / "test" / "cat" / "a.jpeg", (255, 255, 255))
    found = load(str(tmp_path / "pets"), declaration=PETS)
    np.testing.assert_allclose(found.train.inputs[0, :, 1, 2], [1, 0.2, 0], rtol=1e-6)
    assert (found.train.targets.tolist(), found.test.targets.tolist()) == ([1], [0])


@pytest.mark.parametrize(
    ("places", "classes", "targets", "test"),
    [
        (("train/2/a.png",), 3, [2], None),
        (("Cat/a.png", "dog/b.png"), ("cat", "DOG"), [0, 1], None),
        (("Train/cat/a.png", "TEST/Cat/a.png"), ("cat", "dog"), [0], [0]),
        (("cat/a.png",), ("Cat", "cat"), [1], None),  # names that differ in case alone are told apart
        (("train/cat/a.png", "b.png"), ("cat", ".."), [0], None),  # a name does not lead out of the folder
    ],
)
def test_names_of_folders(tmp_path, places, classes, targets, test) -> None:
    for place in places:
        save(tmp_path / "all" / place, 9)
    found = load(str(tmp_path / "all"), declaration=Declaration(classes=classes, size=2))
    assert found.train.targets.tolist() == targets
    assert (found.test and found.test.targets.tolist()) == test


def test_folders_that_are_absent_or_empty(tmp_path: Path) -> None:
    assert "train; put images into" in refusal(tmp_path, PETS)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    assert "there are no images" in refusal(tmp_path, PETS)
    for place in ("cat/a.png", "test/cat/a.png"):
        save(tmp_path / "other" / place, 1)
    assert f"there is no folder {tmp_path}/other/train" in refusal(tmp_path / "other", PETS)


def test_folders_and_files_that_do_not_belong(pets: Path) -> None:
    save(pets / "train" / "CANARY" / "a.png", 9)
    (pets / "train" / "dog" / "CANARY.txt").write_text("hello")
    message = refusal(pets, PETS)
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
    message = refusal(pets, PETS)
    assert "CANARY" not in message
    assert [line.strip() for line in message.splitlines()] == [
        "images, numbered from 1 in the order of their names within their class; a declared image_size brings all to "
        "one size: 4 problems",
        "image 3 of cat in train is damaged, or neither PNG nor JPEG",
        "image 1 of dog in train is damaged, or neither PNG nor JPEG",
        "image 2 of dog in train is not of 4 x 3 pixels in grey",
        "image 4 of dog in train is not of 4 x 3 pixels in grey",
    ]
    (pets / "train" / "cat" / "a.png").write_bytes(b"no image")
    assert "image 1 of cat in train is damaged, or neither PNG nor JPEG" in refusal(pets, PETS)
    Image.new("L", (4, 3)).save(pets / "train" / "cat" / "a.png", format="BMP")
    assert "image 1 of cat in train is damaged, or neither PNG nor JPEG" in refusal(pets, PETS)


@pytest.mark.parametrize("mode", ["RGBA", "I;16"])
def test_other_kinds_of_pixels(tmp_path: Path, mode: str) -> None:
    save(tmp_path / "cat" / "a.png", 0, mode=mode)
    assert "neither 8-bit grey nor 8-bit colour without transparency; convert" in refusal(tmp_path, PETS)
    if mode == "I;16":
        assert "has more than 8 bits a channel" in refusal(tmp_path, FITTED)


def fitted(folder: Path, declaration: Declaration = FITTED) -> np.ndarray:
    return load(str(folder), declaration=declaration).train.inputs


def test_images_of_any_size_and_colour_are_brought_to_the_declared_form(tmp_path: Path) -> None:
    for mode, extent in (("L", (8, 4)), ("P", (40, 3)), ("1", (4, 2)), ("CMYK", (9, 9))):
        save(tmp_path / "cat" / f"{mode}.{'jpg' if mode == 'CMYK' else 'png'}", 0, extent=extent, mode=mode)
    assert fitted(tmp_path).shape == (4, 3, 2, 4)
    assert fitted(tmp_path, replace(FITTED, images=ImageForm(4, 2, grey=True))).shape == (4, 1, 2, 4)


def test_an_image_is_turned_scaled_to_cover_the_size_and_cut_to_its_middle(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    columns = np.repeat(np.array([0, 0, 100, 100, 100, 100, 200, 200], np.uint8)[None, :], 2, axis=0)
    Image.fromarray(columns).save(tmp_path / "cat" / "a.png")  # 8 x 2: two columns on each side are cut away
    np.testing.assert_allclose(fitted(tmp_path) * 255, 100, atol=1e-4)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    left = np.zeros((4, 2), np.uint8)
    left[:, 0] = 255  # turned by a quarter to the right it is the upper half
    Image.fromarray(left).save(tmp_path / "cat" / "a.png", exif=exif)
    np.testing.assert_allclose(fitted(tmp_path)[0, 0], [[1] * 4, [0] * 4])


@pytest.mark.parametrize("mode", ["LA", "P"])
def test_what_is_transparent_is_white(tmp_path: Path, mode: str) -> None:
    clear = Image.new("RGBA", (4, 2), (10, 20, 30, 0)).convert(mode if mode != "P" else "RGBA")
    if mode == "P":
        clear = Image.new("P", (4, 2), 0)
        clear.info["transparency"] = 0
    (tmp_path / "cat").mkdir()
    clear.save(tmp_path / "cat" / "a.png")
    np.testing.assert_allclose(fitted(tmp_path), 1)


def test_what_becomes_of_an_image_does_not_depend_on_the_others(tmp_path: Path) -> None:
    images = [np.random.default_rng(k).integers(0, 256, (7 + k, 9, 3), np.uint8) for k in range(2)]
    for folder, place in (("both", 0), ("both", 1), ("alone", 1)):
        (tmp_path / folder / "cat").mkdir(parents=True, exist_ok=True)
        Image.fromarray(images[place]).save(tmp_path / folder / "cat" / f"{place}.png")
    np.testing.assert_array_equal(fitted(tmp_path / "alone")[0], fitted(tmp_path / "both")[1])


def test_images_without_labels_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there are no images"):
        unlabelled(tmp_path, GREY)
    for name, value in {"c.png": 255, "a.png": 0, "B.jpg": 51}.items():
        save(tmp_path / name, value)
    (tmp_path / ".DS_Store").write_bytes(b"hidden")
    names, images = unlabelled(tmp_path, GREY)
    assert names == ["B.jpg", "a.png", "c.png"]
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
    (tmp_path / "cat.png").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError) as caught:
        unlabelled(tmp_path, GREY)
    assert all(f"{name} is not a file that ends in " in str(caught.value) for name in ("notes.txt", "cat.png"))


def test_unknown_name_lists_all_and_a_close_one() -> None:
    message = refusal("mnits", Declaration())
    assert "did you mean 'mnist'?" in message
    assert all(name in message for name in names())
    assert "\n" not in message


def test_built_in_set_takes_no_declaration() -> None:
    assert "digits is a built-in set and takes no declaration" in refusal("digits", Declaration(size=3))
    assert load("digits", declaration=Declaration()).declared_size == 1437
    hashed = refusal("digits", Declaration(numbering=Numbering(tokens=5)))
    assert "tokens and words are for texts whose words are hashed, not for digits" in hashed


def test_a_folder_named_as_a_built_in_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load("digits").name == "digits"
    assert "declare classes" in refusal("./digits", Declaration())
