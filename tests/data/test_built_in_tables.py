"""Adult, AG News, SST-2 and IMDB, with the quirks of their files."""

import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from noisette.data import DataError, DataSet, load
from noisette.data.built_in_tables import imdb, sst2
from noisette.data.words import Numbering

ROWS = [
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, "
    "United-States, <=50K",
    "90, ?, 77516, HS-grad, 9, Widowed, ?, Unmarried, Black, Female, 99999, 4356, 100, ?, >50K",
]


def write(folder: Path, train: list[str], *, zipped: bool = False) -> None:
    folder.mkdir()
    for name, rows in (("adult.data", train), ("adult.test", ["|1x3 Cross validator", *(f"{row}." for row in ROWS)])):
        content = ("\n".join(rows) + "\n\n").encode()
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [False, True])
def test_official_files_with_their_quirks_and_one_record_by_hand(tmp_path: Path, zipped: bool) -> None:
    write(tmp_path / "adult", ROWS, zipped=zipped)
    found = load("adult", data_dir=tmp_path)
    assert (found.classes, found.declared_size, found.note) == (2, 32_561, "")
    assert found.train.targets.tolist() == found.test.targets.tolist() == [0, 1]
    assert (found.train.inputs == found.test.inputs).all()
    first, second = found.train.inputs
    assert first.shape == (113,)  # 6 numbers and 8 + 16 + 7 + 14 + 6 + 5 + 2 + 41 categories and 8 times unknown
    assert first[0] == pytest.approx(2 * (39 - 17) / (90 - 17) - 1, abs=1e-6)
    assert first[1:10].tolist() == [0, 0, 0, 0, 0, 1, 0, 0, 0]  # State-gov is the sixth
    assert second[1:10].tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 1]  # unknown is the last
    assert second[0] == 1
    numeric = [0, 10, 28, 68, 69, 70]  # age, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week
    categories = [place for place in range(113) if place not in numeric]
    assert first[categories].sum() == second[categories].sum() == 8
    assert second[68] == 1  # the highest capital gain is clipped to the declared range
    assert first[70] == pytest.approx(-0.2, abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([*ROWS, ROWS[0].replace("State-gov", "Pirate")], "'workclass': none of its declared categories in row 3"),
        ([ROWS[0], ROWS[1][:30]], r"adult.data: .*differs from the 15 of the header in row 2"),
    ],
)
def test_damaged_records(tmp_path: Path, rows: list[str], says: str) -> None:
    write(tmp_path / "adult", rows)
    with pytest.raises(DataError, match=says) as caught:
        load("adult", data_dir=tmp_path)
    assert "Pirate" not in str(caught.value)


OFFICIAL = ['"3","The oil","The price\\rose."', '"1","""Oil""","company #39;s, and so on"', '"4"," ",""', '"2","a","b"']
SUBSET = ["label,text,part", '2,"The oil The price\\rose.",head', '0,"""Oil"" company #39;s, and so on",lst']
FEW = Numbering(tokens=3, words=50)


def write_news(folder: Path, files: dict[str, list[str]]) -> Path:
    (folder / "ag_news").mkdir(parents=True)
    for name, lines in files.items():
        content = "".join(f"{line}\n" for line in lines).encode()
        (folder / "ag_news" / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder


def official(folder: Path, train: list[str]) -> DataSet:
    return load("ag-news-words", data_dir=write_news(folder, {"train.csv": train, "test.csv": OFFICIAL}))


def subset(folder: Path, train: list[str]) -> DataSet:
    test = ["label,text", *(line.rpartition(",")[0] for line in SUBSET[1:])]
    return load("ag-news-words", data_dir=write_news(folder, {"train_subset.csv.gz": train, "test.csv.gz": test}))


def test_official_articles(tmp_path: Path) -> None:
    found = official(tmp_path, OFFICIAL)
    assert (found.name, found.classes, found.declared_size) == ("ag-news", 4, 120_000)
    texts = ["The oil The price\\rose.", '"Oil" company #39;s, and so on', "", "a b"]
    assert found.train.inputs.tolist() == Numbering().number(texts).tolist(), "also an article without a word"
    assert found.train.targets.tolist() == [2, 0, 3, 1]
    assert (found.test.inputs == found.train.inputs).all()
    assert (found.words, found.note) == (4096, "")


def test_the_copy_with_a_part_of_the_articles(tmp_path: Path) -> None:
    found = subset(tmp_path, SUBSET)
    assert (found.classes, found.declared_size) == (4, 18_349)
    numbered = Numbering().number(["The oil The price\\rose.", '"Oil" company #39;s, and so on']).tolist()
    assert found.train.inputs.tolist() == found.test.inputs.tolist() == numbered
    assert found.train.targets.tolist() == [2, 0]
    assert "18,349 of the 120,000 training articles of AG News: not comparable with published results" in found.note


@pytest.mark.parametrize("label", ["0", "5", " "])
def test_another_class_is_refused_by_its_row(tmp_path: Path, label: str) -> None:
    with pytest.raises(DataError, match=r"train.csv: the class is none of 1, 2, 3, 4 in row 5$"):
        official(tmp_path, [*OFFICIAL, f'"{label}","secret","words"'])


@pytest.mark.parametrize(
    ("read", "lines", "says"),
    [
        (official, [*OFFICIAL, '"1","secret'], r"train.csv: in row 5 .* is not closed"),
        (subset, ["class,words", "1,oil"], r"there is no column 'label'\n.*there is no column 'text'"),
        (subset, [], r"train_subset\.csv\.gz"),
    ],
)
def test_damaged_articles_are_refused_and_not_quoted(tmp_path, read, lines, says) -> None:
    with pytest.raises(DataError, match=says) as caught:
        read(tmp_path, lines)
    assert "secret" not in str(caught.value)


def test_errors_say_where_to_put_absent_articles(tmp_path: Path) -> None:
    wanted = r"put train\.csv, test\.csv from https://raw\.githubusercontent\.com/.*/ag_news_csv/ into .*ag_news$"
    with pytest.raises(DataError, match=wanted):
        load("ag-news-words", data_dir=write_news(tmp_path, {}))
    with pytest.raises(DataError, match=r"put SST-2\.zip from"):
        sst2(tmp_path, FEW)


SENTENCES = 'label\tsentence\n1\ta "good" film\n0\tdull\n'


def sentences(folder: Path, content: str = SENTENCES) -> Path:
    (folder / "sst2").mkdir(parents=True, exist_ok=True)
    for name in ("train.tsv.gz", "dev.tsv.gz"):
        (folder / "sst2" / name).write_bytes(gzip.compress(content.encode()))
    return folder


def test_sst2_from_the_archive_and_from_a_copy(tmp_path: Path) -> None:
    official = tmp_path / "a"
    (official / "sst2").mkdir(parents=True)
    with zipfile.ZipFile(official / "sst2" / "SST-2.zip", "w") as archive:
        archive.writestr("SST-2/train.tsv", 'sentence\tlabel\na "good" film\t1\ndull\t0\n')
        archive.writestr("SST-2/dev.tsv", SENTENCES)
    for folder in (official, sentences(tmp_path / "b")):
        found = sst2(folder, FEW)
        for split in (found.train, found.test):
            assert split.inputs.tolist() == FEW.number(['a "good" film', "dull"]).tolist()
            assert split.targets.tolist() == [1, 0]
        assert (found.declared_size, found.classes, found.words) == (67_349, 2, 50)
    with pytest.raises(DataError, match="the class is none of 0, 1 in row 2"):
        sst2(sentences(tmp_path / "b", SENTENCES.replace("0\t", "2\t")), FEW)


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
        assert found.train.inputs.tolist() == FEW.number(["dull", "a good film"]).tolist()
        assert found.test.inputs.tolist() == FEW.number(["bad", "fine"]).tolist()
        assert found.test.targets.tolist() == found.train.targets.tolist() == [0, 1]
    (copy / "test.csv.xz").write_bytes(lzma.compress(b'label,text\n0,"secret\n'))
    with pytest.raises(DataError, match=r"in row 2 .* a quote opens a field, and is not closed") as refusal:
        imdb(copy.parent, FEW)
    assert "secret" not in str(refusal.value)
    (copy / "test.csv.xz").write_bytes(b"secret")
    with pytest.raises(DataError, match=r"cannot be read: its .xz format is damaged"):
        imdb(copy.parent, FEW)


def test_damaged_archives(tmp_path: Path) -> None:
    for read, name, file in ((sst2, "sst2", "SST-2.zip"), (imdb, "imdb", "aclImdb_v1.tar.gz")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_bytes(b"PK not an archive")
        with pytest.raises(DataError, match="is damaged"):
            read(tmp_path, FEW)
    with zipfile.ZipFile(tmp_path / "sst2" / "SST-2.zip", "w") as archive:
        archive.writestr("SST-2/train.tsv", b"\xff")
    with pytest.raises(DataError, match="is damaged"):
        sst2(tmp_path, FEW)
