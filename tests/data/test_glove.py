"""Word vectors from files: valid files are read, and errors name the invalid lines of others."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError
from noisette.data.built_in_texts import MOST_FREQUENT, WHOLE, glove, read_vectors, read_vectors_npz

LINES = [
    "the 0.5 -1.25 3e-2",
    "'s 1 2 3",
    "caf\u00e9 4 5 6",
    "\u0085 7 8 9",
]  # U+0085 would end a line for some readers


def text(folder: Path, *lines: str) -> Path:
    path = folder / "vectors.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def refusal(path: Path, *, words: int = 4) -> str:
    with pytest.raises(DataError) as caught:
        read_vectors(path, words=words, dims=3)
    return str(caught.value)


def test_words_and_vectors_as_they_are_written(tmp_path: Path) -> None:
    found = read_vectors(text(tmp_path, *LINES), words=4, dims=3)
    assert list(found.words) == ["the", "'s", "caf\u00e9", "\u0085"]
    expected = np.array([[0.5, -1.25, 0.03], [1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    np.testing.assert_array_equal(found.vectors, expected, strict=True)
    assert found.note == ""


def test_a_file_truncated_within_a_line_names_the_line(tmp_path: Path) -> None:
    path = text(tmp_path, *LINES)
    path.write_bytes(path.read_bytes()[:-3])
    assert "line 4 has 2 numbers instead of 3" in refusal(path)
    assert "download it again" in refusal(path)


def test_a_file_truncated_between_lines_has_too_few_words(tmp_path: Path) -> None:
    assert "there are 3 words instead of 4" in refusal(text(tmp_path, *LINES[:3]))


def test_vectors_of_another_length_are_refused(tmp_path: Path) -> None:
    assert "line 1 has 2 numbers instead of 3" in refusal(text(tmp_path, "the 1 2"), words=1)
    assert "line 1 has 4 numbers instead of 3" in refusal(text(tmp_path, "the 1 2 3 4"), words=1)


def test_all_garbled_lines_are_listed(tmp_path: Path) -> None:
    path = text(tmp_path, LINES[0], "of x 2 3", "to 1 2 3", "and  2 3", "in 1 2")
    path.write_bytes(path.read_bytes() + b"\xff 1 2 3\n\n")
    message = refusal(path, words=2)
    for line in (2, 4, 6):
        assert f"line {line} has an invalid number or word" in message
    assert "line 5 has 2 numbers" in message
    assert "line 7 has 0 numbers" in message
    assert "line 1 " not in message
    assert "line 3 " not in message


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e39"])
def test_vectors_that_are_not_finite_are_refused(tmp_path: Path, number: str) -> None:
    assert "the vector of word 2 is not finite" in refusal(text(tmp_path, LINES[0], f"of 1 {number} 3"), words=2)


def test_a_word_that_appears_twice_is_refused(tmp_path: Path) -> None:
    assert "1 words appear twice" in refusal(text(tmp_path, *LINES, LINES[0]))


def test_the_copy_of_the_most_frequent_words(tmp_path: Path) -> None:
    path = tmp_path / MOST_FREQUENT
    np.savez(path, words=np.array(["the", "of"]), vectors=np.eye(2, dtype=np.float32))
    found = read_vectors_npz(path)
    assert list(found.words) == ["the", "of"]
    assert found.vectors.tolist() == [[1, 0], [0, 1]]
    assert "the 2 most frequent words of GloVe, of dimension 2" in found.note


@pytest.mark.parametrize(
    "arrays",
    [
        {"words": np.array(["the"])},
        {"words": np.array(["the", "of"]), "vectors": np.ones((3, 2), np.float32)},
        {"words": np.array(["the"]), "vectors": np.ones(1, np.float32)},
        {"words": np.array([1.0]), "vectors": np.ones((1, 2), np.float32)},
        {"words": np.array(["the"]), "vectors": np.ones((1, 2), np.int64)},
        {"words": np.array(["the"]), "vectors": np.full((1, 2), np.nan, np.float32)},
        {"words": np.array([], dtype="U3"), "vectors": np.ones((0, 2), np.float32)},
        {"words": np.array(["the"]), "vectors": np.ones((1, 0), np.float32)},
        {"words": np.array(["the"], dtype=object), "vectors": np.ones((1, 2), np.float32)},
    ],
)
def test_arrays_that_are_not_words_and_vectors_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / MOST_FREQUENT
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="download it again"):
        read_vectors_npz(path)


def test_a_file_that_is_not_an_archive_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / MOST_FREQUENT
    path.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match="is damaged"):
        read_vectors_npz(path)


def test_the_whole_vectors_take_precedence_over_the_copy(tmp_path: Path) -> None:
    (tmp_path / "glove").mkdir()
    np.savez(tmp_path / "glove" / MOST_FREQUENT, words=np.array(["the"]), vectors=np.ones((1, 2), np.float32))
    assert list(glove(tmp_path).words) == ["the"]
    (tmp_path / "glove" / WHOLE).write_text("the 1 2 3\n")
    with pytest.raises(DataError, match="line 1 has 3 numbers instead of 100"):
        glove(tmp_path)


def test_an_error_says_where_to_put_absent_vectors(tmp_path: Path) -> None:
    wanted = f"put {WHOLE} from https://nlp.stanford.edu/data/glove.6B.zip into {tmp_path / 'glove'}"
    with pytest.raises(DataError, match=re.escape(wanted)):
        glove(tmp_path)
