from __future__ import annotations

import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from noisette.data import DataError, Declaration, files, load
from noisette.data.built_in_texts import imdb, sst2
from noisette.data.words import PADDING, Numbering, VectorNumbering, Vocabulary

FEW = Numbering(tokens=3, words=50)


def test_texts_are_cut_and_padded() -> None:
    numbers = FEW.number(["", "one", "One two three four"])
    assert numbers[0].tolist() == [PADDING] * 3
    assert numbers[1].tolist() == [numbers[2, 0], PADDING, PADDING]
    assert (numbers[2] > PADDING).all()
    assert numbers.max() < FEW.size


def test_the_number_of_a_word_depends_on_no_other_text() -> None:
    texts = ["a good film", "a dull one", "good"]
    together = FEW.number(texts)
    for row, text in zip(together, texts, strict=True):
        assert np.array_equal(FEW.number([text])[0], row)


def test_numbers_are_spread_evenly() -> None:
    numbers = Numbering(tokens=1, words=101).number(["".join(chr(97 + int(d)) for d in str(n)) for n in range(20_000)])
    counts = np.bincount(numbers[:, 0], minlength=101)[1:]
    assert counts.min() > 200 - 5 * 14
    assert counts.max() < 200 + 5 * 14


@pytest.mark.parametrize("settings", [{"tokens": 0}, {"words": 1}])
def test_too_small(settings: dict[str, int]) -> None:
    with pytest.raises(DataError, match="expected tokens >= 1 and words >= 2"):
        Numbering(**settings)


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(DataError, match="holds no tokenizer that can be loaded"):
        Numbering(folder=tmp_path).number(["a"])


def test_a_csv_of_texts(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_text('id;review;stars\n7;"good; very";1.0\n8;;0\n', encoding="utf-8")
    declared = Declaration(classes=2, size=2, label="stars", text="review", numbering=FEW)
    found = load(str(path), declaration=declared)
    assert found.train.inputs.tolist() == FEW.number(["good; very", ""]).tolist()
    assert found.train.targets.tolist() == [1, 0]
    assert found.words == 50
    with pytest.raises(DataError, match="text: there is no column 'reveiw'; did you mean 'review'"):
        load(str(path), declaration=Declaration(classes=2, size=2, label="stars", text="reveiw"))


def test_a_text_is_the_only_input() -> None:
    with pytest.raises(DataError, match="a text is the only input"):
        Declaration(text="review", ranges={"age": (0, 1)})
    with pytest.raises(DataError, match="it cannot be the label"):
        Declaration(text="label")


SENTENCES = 'label\tsentence\n1\ta "good" film\n0\tdull\n'


def test_sst2_from_the_archive_and_from_a_copy(tmp_path: Path) -> None:
    official, copy = tmp_path / "a" / "sst2", tmp_path / "b" / "sst2"
    official.mkdir(parents=True)
    copy.mkdir(parents=True)
    with zipfile.ZipFile(official / "SST-2.zip", "w") as archive:
        archive.writestr("SST-2/train.tsv", 'sentence\tlabel\na "good" film\t1\ndull\t0\n')
        archive.writestr("SST-2/dev.tsv", SENTENCES)
    for name in ("train.tsv.gz", "dev.tsv.gz"):
        (copy / name).write_bytes(gzip.compress(SENTENCES.encode()))
    for folder in (official, copy):
        found = sst2(folder.parent, FEW)
        assert found.test is not None
        for split in (found.train, found.test):
            assert split.inputs.tolist() == FEW.number(['a "good" film', "dull"]).tolist()
            assert split.targets.tolist() == [1, 0]
        assert (found.declared_size, found.classes, found.words) == (67_349, 2, 50)


def test_sst2_as_public_word_vectors(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    for name in ("train.tsv.gz", "dev.tsv.gz"):
        (tmp_path / "sst2" / name).write_bytes(gzip.compress(SENTENCES.encode()))
    vocabulary = Vocabulary(("film", "a"), np.array([[1.0, 0.0], [0.0, 1.0]], np.float32), "two words only")
    found = sst2(tmp_path, VectorNumbering(vocabulary, tokens=6))
    assert found.train.inputs.tolist() == [[3, 1, 1, 1, 2, 0], [1, 0, 0, 0, 0, 0]]
    assert found.vectors is not None
    assert found.vectors.tolist() == [[0, 0], [0.5, 0.5], [1, 0], [0, 1]]
    assert (found.words, found.note) == (0, "two words only")


def test_sst2_with_a_wrong_label(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    for name in ("train.tsv.gz", "dev.tsv.gz"):
        (tmp_path / "sst2" / name).write_bytes(gzip.compress(SENTENCES.replace("0\t", "2\t").encode()))
    with pytest.raises(DataError, match="the class is none of 0, 1 in row 2"):
        sst2(tmp_path, FEW)


def test_imdb_from_the_archive_and_from_a_copy(tmp_path: Path) -> None:
    official, copy = tmp_path / "a" / "imdb", tmp_path / "b" / "imdb"
    official.mkdir(parents=True)
    copy.mkdir(parents=True)
    reviews = {"train/neg/0_1.txt": "dull", "train/pos/0_9.txt": "a good film", "train/unsup/0_0.txt": "unread"}
    reviews |= {"test/neg/0_2.txt": "bad", "test/pos/1_8.txt": "fine", "README": "unread"}
    with tarfile.open(official / "aclImdb_v1.tar.gz", "w:gz") as archive:
        for name, text in reviews.items():
            member = tarfile.TarInfo(f"aclImdb/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    for part, (bad, good) in {"train": ("dull", "a good film"), "test": ("bad", "fine")}.items():
        content = f'label,rating,id,text\n0,1,0,"{bad}"\n1,9,0,"{good}"\n'
        (copy / f"{part}.csv.xz").write_bytes(lzma.compress(content.encode()))
    for folder in (official, copy):
        found = imdb(folder.parent, FEW)
        assert found.test is not None
        assert found.train.inputs.tolist() == FEW.number(["dull", "a good film"]).tolist()
        assert found.test.inputs.tolist() == FEW.number(["bad", "fine"]).tolist()
        assert found.test.targets.tolist() == found.train.targets.tolist() == [0, 1]


def test_an_open_quote_in_the_copy_of_imdb_is_refused_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "imdb").mkdir()
    for name in ("train.csv.xz", "test.csv.xz"):
        (tmp_path / "imdb" / name).write_bytes(lzma.compress(b'label,text\n0,"secret\n'))
    with pytest.raises(DataError, match=r"in row 1 .* a quote opens a field, and is not closed") as refusal:
        imdb(tmp_path, FEW)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(("read", "name", "file"), [(sst2, "sst2", "SST-2.zip"), (imdb, "imdb", "aclImdb_v1.tar.gz")])
def test_damaged_archives(read, name: str, file: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / file).write_bytes(b"PK not an archive")
    with pytest.raises(DataError, match="is damaged"):
        read(tmp_path, FEW)


def test_absent_files_say_where_to_put_them(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"put SST-2\.zip from"):
        sst2(tmp_path, FEW)
    assert files.folders("sst2", tmp_path)[0] == tmp_path / "sst2"
