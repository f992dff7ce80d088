from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, Declaration, load

DECLARED = Declaration(classes=3, size=50)


def written(tmp_path: Path, **arrays: np.ndarray) -> str:
    np.savez(tmp_path / "mine.npz", **arrays)
    return str(tmp_path / "mine.npz")


def refusal(path: str, declaration: Declaration = DECLARED) -> str:
    with pytest.raises(DataError) as caught:
        load(path, declaration=declaration)
    return str(caught.value)


def test_train_and_test(tmp_path: Path) -> None:
    x = np.array([[1.0, 300.0], [-2.0, 4.5]])
    path = written(tmp_path, x_train=x, y_train=np.array([2, 0]), x_test=x[:1], y_test=np.array([1], np.uint8))
    found = load(path, declaration=DECLARED)
    assert (found.name, found.classes, found.declared_size, found.note) == ("mine.npz", 3, 50, "")
    assert found.train.inputs.dtype == np.float32
    assert found.train.inputs.tolist() == x.tolist()
    assert found.train.targets.dtype == np.int64
    assert found.train.targets.tolist() == [2, 0]
    assert found.test is not None
    assert found.test.targets.tolist() == [1]


def test_x_and_y_alone(tmp_path: Path) -> None:
    found = load(written(tmp_path, X=np.ones((4, 2), np.uint8) * 200, y=np.zeros(4, bool)), declaration=DECLARED)
    assert found.test is None
    assert (found.train.inputs == 200).all()  # bytes that are no image are numbers like any others


@pytest.mark.parametrize(("shape", "becomes"), [((4, 5, 6), (4, 1, 5, 6)), ((4, 3, 5, 6), (4, 3, 5, 6))])
def test_images_of_bytes_are_scaled(tmp_path: Path, shape: tuple[int, ...], becomes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    found = load(written(tmp_path, X=x, y=np.zeros(4, int)), declaration=DECLARED)
    assert found.train.inputs.shape == becomes
    np.testing.assert_allclose(found.train.inputs.reshape(shape), x / 255, rtol=1e-6)


def test_images_of_floats_are_not_scaled(tmp_path: Path) -> None:
    x = np.full((4, 1, 2, 2), 77.0)
    assert (load(written(tmp_path, X=x, y=np.zeros(4, int)), declaration=DECLARED).train.inputs == 77).all()


def test_values_that_are_not_finite_are_accepted(tmp_path: Path) -> None:
    x = np.array([[np.nan, 1.0], [np.inf, 1e300]])
    found = load(written(tmp_path, X=x, y=np.zeros(2, int)), declaration=DECLARED)
    assert np.isnan(found.train.inputs[0, 0])
    assert np.isposinf(found.train.inputs[1]).all()


def test_class_names(tmp_path: Path) -> None:
    path = written(tmp_path, X=np.ones((3, 2)), y=np.array(["b", "a", "b"]))
    found = load(path, declaration=Declaration(classes=("a", "b"), size=3))
    assert found.train.targets.tolist() == [1, 0, 1]
    message = refusal(path)
    assert "y: none of the declared classes in rows 1, 2 and 3; declare classes" in message


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"x_train": np.ones((2, 2))}, "no y_train; name the arrays"),
        ({"features": np.ones((2, 2))}, "no X and no y; name the arrays"),
        ({"X": np.ones((2, 2)), "y": np.array([0, 1]), "x_test": np.ones((2, 2))}, "no y_test"),
        ({"X": np.ones(2), "y": np.array([0, 1])}, "X is float64 of shape (2,); expected real numbers"),
        ({"X": np.array([["a"], ["b"]]), "y": np.array([0, 1])}, "X is <U1 of shape (2, 1)"),
        (
            {"X": np.ones((2, 2)), "y": np.array([0.0, 1.0])},
            "y is float64 of shape (2,); expected integers or",
        ),
        (
            {"X": np.ones((2, 2)), "y": np.eye(2, dtype=int)},
            "y is int64 of shape (2, 2); expected integers or",
        ),
        ({"X": np.ones((2, 2)), "y": np.array([0])}, "train has 2 inputs but 1 labels"),
        ({"X": np.ones((2, 2)), "y": np.array([0, 3])}, "train has 1 labels outside 0..2, the first at index 1"),
        (
            {"X": np.ones((2, 2)), "y": np.array([0, 1]), "x_test": np.ones((1, 3)), "y_test": np.array([0])},
            "the examples of train have shape (2,), those of test (3,)",
        ),
    ],
)
def test_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, np.ndarray], says: str) -> None:
    assert says in refusal(written(tmp_path, **arrays))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / "sprung",))

    trap = np.array([Trap()], dtype=object)
    np.savez(tmp_path / "mine.npz", X=trap, y=np.zeros(1, int))
    message = refusal(str(tmp_path / "mine.npz"))
    assert message.endswith("mine.npz is not a valid NPZ of plain arrays; save it with numpy.savez")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("content", [b"", b"no archive", pickle.dumps([1, 2]), b"\x93NUMPY\x01\x00"])
def test_not_an_npz(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "mine.npz").write_bytes(content)
    assert "not a valid NPZ" in refusal(str(tmp_path / "mine.npz"))


def test_truncated(tmp_path: Path) -> None:
    path = Path(written(tmp_path, X=np.ones((100, 5)), y=np.zeros(100, int)))
    path.write_bytes(path.read_bytes()[:1000])
    assert "not a valid NPZ" in refusal(str(path))


def test_a_huge_declared_array_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50, 2)})
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as opened:
        opened.writestr("X.npy", header.getvalue() + bytes(16))
    assert "not a valid NPZ" in refusal(str(tmp_path / "mine.npz"))


def test_csv_facts_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, X=np.ones((1, 1)), y=np.zeros(1, int))
    declared = Declaration(classes=3, size=1, test=tmp_path, ranges={"a": (0, 1)}, categories={"b": ("c",)})
    message = refusal(path, declared)
    assert "3 problems" in message
    assert "x_test and y_test" in message


def test_undeclared(tmp_path: Path) -> None:
    path = written(tmp_path, X=np.ones((1, 1)), y=np.zeros(1, int))
    assert "declare classes" in refusal(path, Declaration(size=3))
    assert "declare size" in refusal(path, Declaration(classes=3))
