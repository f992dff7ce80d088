"""AG News from both kinds of files; only the inputs depend on the texts, not their shape or the vocabulary."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, DataSet, load
from noisette.data.built_in_texts import MOST_FREQUENT

WORDS = ["the", "oil", "price", "'s", "."]
OFFICIAL = ['"3","The oil","The price\\rose."', '"1","""Oil""","company #39;s, and so on"', '"4"," ",""', '"2","a","b"']
SUBSET = ["label,text,part", '2,"The oil The price\\rose.",head', '0,"""Oil"" company #39;s, and so on",lst']
NUMBERED = [[2, 3, 2, 4, 1, 6], [1, 3, 1, 1, 5, 1]]  # 1 is a word that is not among WORDS


def write(folder: Path, files: dict[str, list[str]]) -> Path:
    for name in ("glove", "ag_news"):
        (folder / name).mkdir(parents=True)
    np.savez(folder / "glove" / MOST_FREQUENT, words=np.array(WORDS), vectors=np.ones((5, 3), np.float32))
    for name, lines in files.items():
        content = "".join(f"{line}\n" for line in lines).encode()
        (folder / "ag_news" / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def official(folder: Path, train: list[str]) -> DataSet:
    return load("ag-news", data_dir=write(folder, {"train.csv": train, "test.csv": OFFICIAL}))


def subset(folder: Path, train: list[str]) -> DataSet:
    test = ["label,text", *(line.rpartition(",")[0] for line in SUBSET[1:])]
    return load("ag-news", data_dir=write(folder, {"train_subset.csv.gz": train, "test.csv.gz": test}))


def test_official_files(tmp_path: Path) -> None:
    found = official(tmp_path, OFFICIAL)
    assert found.test is not None
    assert (found.name, found.classes, found.declared_size) == ("ag-news", 4, 120_000)
    assert found.train.inputs.shape == (4, 20)
    assert found.train.inputs[:2, :6].tolist() == NUMBERED
    assert found.train.inputs[2].tolist() == [0] * 20, "an article without a word is one like any other"
    assert found.train.targets.tolist() == [2, 0, 3, 1]
    assert (found.test.inputs == found.train.inputs).all()
    assert found.vectors is not None
    assert found.vectors.shape == (7, 3)
    assert "not comparable" not in found.note
    assert "word vectors of only the 5 most frequent" in found.note


def test_the_copy_with_a_part_of_the_articles(tmp_path: Path) -> None:
    found = subset(tmp_path, SUBSET)
    assert found.test is not None
    assert (found.classes, found.declared_size) == (4, 18_349)
    assert found.train.inputs[:, :6].tolist() == NUMBERED
    assert found.train.targets.tolist() == [2, 0]
    assert (found.test.inputs == found.train.inputs).all()
    assert "18,349 of the 120,000 training articles of AG News: not comparable with published results" in found.note


@pytest.mark.parametrize(
    ("read", "lines", "other"),
    [
        (official, OFFICIAL, ['"2","Zyzzyva zyzzyva","zyzzyva of the oil oil"'] * 7),
        (subset, SUBSET, [SUBSET[0], *['1,"Zyzzyva zyzzyva zyzzyva of the oil oil",head'] * 7]),
    ],
)
def test_no_number_shape_or_vector_changes_with_the_private_articles(
    tmp_path: Path, read: Callable[[Path, list[str]], DataSet], lines: list[str], other: list[str]
) -> None:
    first, second = read(tmp_path / "first", lines), read(tmp_path / "second", other)
    assert first.test is not None
    assert second.test is not None
    assert (first.test.inputs == second.test.inputs).all(), "words of other articles keep their numbers"
    assert first.vectors is not None
    assert second.vectors is not None
    np.testing.assert_array_equal(first.vectors, second.vectors, strict=True)
    assert first.train.inputs.shape[1:] == second.train.inputs.shape[1:]
    assert (first.classes, first.declared_size, first.note) == (second.classes, second.declared_size, second.note)
    both = read(tmp_path / "both", [*lines, *other[-7:]])
    assert (both.train.inputs[: len(first.train.inputs)] == first.train.inputs).all()


@pytest.mark.parametrize("label", ["0", "5", "", "x", " "])
def test_another_class_is_refused_by_its_row(tmp_path: Path, label: str) -> None:
    with pytest.raises(DataError, match=r"train.csv: the class is none of 1, 2, 3, 4 in row 5$"):
        official(tmp_path, [*OFFICIAL, f'"{label}","secret","words"'])


def test_a_truncated_line_is_refused_and_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train.csv: in row 4 .* is not closed") as caught:
        official(tmp_path, [*OFFICIAL, '"1","secret'])
    assert "secret" not in str(caught.value)


def test_the_copy_must_have_its_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        subset(tmp_path, ["class,words", "1,oil"])
    assert "there is no column 'label'" in str(caught.value)
    assert "there is no column 'text'" in str(caught.value)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train_subset\.csv\.gz"):
        subset(tmp_path, [])


def test_an_error_says_where_to_put_absent_articles(tmp_path: Path) -> None:
    wanted = r"put train\.csv, test\.csv from https://raw\.githubusercontent\.com/.*/ag_news_csv/ into .*ag_news$"
    with pytest.raises(DataError, match=wanted):
        load("ag-news", data_dir=write(tmp_path, {}))


def test_absent_word_vectors_are_reported_first(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="GloVe word vectors are not on this machine"):
        load("ag-news", data_dir=tmp_path)


def test_the_real_articles(real: Callable[[str], Path]) -> None:
    real("glove")
    found = load("ag-news", data_dir=real("ag_news"))
    assert found.test is not None
    assert np.bincount(found.test.targets).tolist() == [1900] * 4
    if found.declared_size == 18_349:
        assert np.bincount(found.train.targets).tolist() == [4622, 4479, 4576, 4672]
    known = found.test.inputs > 1
    assert 0.65 < known.mean() < 0.99
