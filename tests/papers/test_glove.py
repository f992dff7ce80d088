"""GloVe's vectors: their files, damaged ones, and texts that are numbered by a public list of words."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError
from papers.glove import MOST_FREQUENT, PADDING, UNKNOWN, WHOLE, Vocabulary, glove, read_vectors, read_vectors_npz

LINES = ["the 0.5 -1.25 3e-2", "'s 1 2 3", "caf\u00e9 4 5 6", "\u0085 7 8 9"]  # U+0085 ends a line for some readers


def text(folder: Path, *lines: str, end: bytes = b"") -> Path:
    path = folder / "vectors.txt"
    path.write_bytes("".join(f"{line}\n" for line in lines).encode() + end)
    return path


def refusal(path: Path, *, words: int = 4) -> str:
    with pytest.raises(DataError) as caught:
        read_vectors(path, words=words, dims=3)
    return str(caught.value)


def test_words_and_vectors_as_they_are_written(tmp_path: Path) -> None:
    found = read_vectors(text(tmp_path, *LINES), words=4, dims=3)
    assert list(found.known) == ["the", "'s", "caf\u00e9", "\u0085"]
    expected = np.array([[0.5, -1.25, 0.03], [1, 2, 3], [4, 5, 6], [7, 8, 9]], np.float32)
    np.testing.assert_array_equal(found.vectors, expected, strict=True)
    assert found.note == ""


def test_damaged_vectors_are_refused(tmp_path: Path) -> None:
    assert "line 4 is no word with 3 numbers" in refusal(text(tmp_path, *LINES[:3], end=b"\x41 7 8"))
    assert "there are 3 words instead of 4" in refusal(text(tmp_path, *LINES[:3]))
    assert "1 words appear twice" in refusal(text(tmp_path, *LINES, LINES[0]))
    for number in ("nan", "-inf", "1e39"):
        assert "the vector of word 2 is not finite" in refusal(text(tmp_path, LINES[0], f"of 1 {number} 3"), words=2)
    garbled = text(tmp_path, LINES[0], "of x 2 3", "to 1 2 3", "and  2 3", "in 1 2", end=b"\xff 1 2 3\n\n")
    message = refusal(garbled, words=2)
    assert re.findall(r"line (\d) is no word", message) == ["2", "4", "5", "6", "7"]
    assert "download it again" in message


@pytest.mark.parametrize(
    "arrays",
    [
        {"words": np.array(["the"])},
        {"words": np.array(["the", "of"]), "vectors": np.ones((3, 2), np.float32)},
        {"words": np.array(["the"]), "vectors": np.ones((1, 2), np.int64)},
        {"words": np.array(["the"]), "vectors": np.full((1, 2), np.nan, np.float32)},
        {"words": np.array([], dtype="U3"), "vectors": np.ones((0, 2), np.float32)},
    ],
)
def test_arrays_that_are_not_words_and_vectors_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / MOST_FREQUENT
    np.savez(path, **arrays)  # pyright: ignore[reportArgumentType]
    with pytest.raises(DataError, match="download it again"):
        read_vectors_npz(path)
    path.write_bytes(b"PK\x03\x04 cut")
    with pytest.raises(DataError, match="is damaged"):
        read_vectors_npz(path)


KNOWN = ("the", "oil", "price", "'s", ".")
VOCABULARY = Vocabulary(known=KNOWN, vectors=np.arange(10, dtype=np.float32).reshape(5, 2), note="", tokens=4)


def test_long_texts_are_truncated_and_short_ones_padded_at_the_end() -> None:
    texts = ["The oil price", "the oil . the oil", "", "the zyzzyva"]
    numbers = VOCABULARY.number(texts)
    assert numbers.dtype == np.int64
    assert numbers.tolist() == [[2, 3, 4, PADDING], [2, 3, 6, 2], [PADDING] * 4, [2, UNKNOWN, PADDING, PADDING]]
    for row, text in zip(numbers, texts, strict=True):
        assert np.array_equal(VOCABULARY.number([text])[0], row), "by no other text"


def test_padding_is_zero_unknown_is_the_mean_and_words_keep_their_vectors() -> None:
    vectors = VOCABULARY.numbered_vectors
    assert vectors.dtype == np.float32
    assert vectors.tolist() == [[0, 0], [4, 5], [0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_errors_say_where_to_put_absent_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOISETTE_DATA", raising=False)
    wanted = f"put {WHOLE} from https://nlp.stanford.edu/data/glove.6B.zip into {tmp_path / 'glove'}"
    with pytest.raises(DataError, match=re.escape(wanted)):
        glove(tmp_path)
