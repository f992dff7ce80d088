"""The built-in table, Adult (Census Income), and the sets of texts: AG News, SST-2 and IMDB."""

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np

from noisette.data import files, tables
from noisette.data.columns import Category, Columns, Declaration, Number, codes
from noisette.data.dataset import DataError, DataSet, Split, in_rows, refuse
from noisette.data.files import BuiltIn
from noisette.data.words import Numbering

ADULT = files.Source(
    "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
    {"adult.data": "md5:5d7c39d7b8804f071cdd1f2a7c460872", "adult.test": "md5:35238206dfdf7f1fe215bbb874adecdc"},
)

# In the order of the file: the range of a number, or the categories that adult.names lists for a text. Ranges are round
# numbers chosen from what the attributes mean, not from the records; values outside are clipped.
ATTRIBUTES: dict[str, tuple[float, float] | str] = {
    "age": (17, 90),
    "workclass": "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked",
    "fnlwgt": (0, 500_000),
    "education": "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters "
    "1st-4th 10th Doctorate 5th-6th Preschool",
    "education-num": (1, 16),
    "marital-status": "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent "
    "Married-AF-spouse",
    "occupation": "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
    "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces",
    "relationship": "Wife Own-child Husband Not-in-family Other-relative Unmarried",
    "race": "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black",
    "sex": "Female Male",
    "capital-gain": (0, 20_000),
    "capital-loss": (0, 5_000),
    "hours-per-week": (0, 100),
    "native-country": "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India "
    "Japan Greece South China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland "
    "France Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
    "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands",
}
_INCOME = Declaration(
    classes=("<=50K", ">50K"),
    label="income",
    columns=Columns(  # "?", which stands for an unknown value, is one more category
        {name: Category((*it.split(), "?")) if isinstance(it, str) else Number(*it) for name, it in ATTRIBUTES.items()}
    ),
)


def adult(data_dir: Path | None) -> DataSet:
    """Adult: 32,561 + 16,281 records; inputs (n, 113): numbers scaled to [-1, 1], and one input for each category."""

    def incomes(path: Path) -> Split:
        rows = {k: row for k, row in tables.parsed(path, tables.fields).items() if not row[0].startswith("|")}
        columns = tables.table(path, header=[*ATTRIBUTES, _INCOME.label], rows=rows)  # without a comment, after |
        columns[_INCOME.label] = [text.rstrip(".") for text in columns[_INCOME.label]]  # those of the test file end so
        return tables.encode(path, columns, _INCOME, _INCOME.features(ATTRIBUTES))

    def read(folder: Path, suffix: str = "") -> DataSet:
        splits = [incomes(folder / f"{name}{suffix}") for name in ADULT.files]
        return DataSet("adult", *splits, classes=2, declared_size=32_561)

    copies = {tuple(f"{name}.gz" for name in ADULT.files): partial(read, suffix=".gz")}
    return files.read("adult", ADULT, read, data_dir=data_dir, copies=copies)


AG_NEWS = files.Source(
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    {"train.csv": "md5:b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "md5:d52ea96a97a2d943681189a97654912d"},
)
SST2 = files.Source("https://dl.fbaipublicfiles.com/glue/data/", {"SST-2.zip": "md5:9f81648d4199384278b86e315dac217c"})
IMDB = files.Source(
    "https://ai.stanford.edu/~amaas/data/sentiment/", {"aclImdb_v1.tar.gz": "md5:7c2ac02c03563afcf9b574c7e56c153a"}
)
_REVIEW = re.compile(r"aclImdb/(train|test)/(neg|pos)/\d+_\d+\.txt")

Part = tuple[Path, Sequence[str], Sequence[str]]  # a file, its texts and their labels


def ag_news(data_dir: Path | None, numbering: Numbering) -> DataSet:
    """AG News, is an article about the world, sports, business, or science: 120,000 + 7,600, or a part of 18,349.

    Inputs (n, tokens) are numbers of the first words of title and description together.

    Guarantee: a record is one article. There is none for a smaller unit, as one word, or a larger one, as an author.
    """

    def articles(path: Path) -> Part:
        rows = tables.table(path, header=("class", "title", "description"), rows=tables.parsed(path, tables.fields))
        texts = [" ".join(parts) for parts in zip(rows["title"], rows["description"], strict=True)]
        return path, texts, rows["class"]

    def official(folder: Path) -> DataSet:
        parts = [articles(folder / name) for name in AG_NEWS.files]
        return _data_set("ag-news", parts, ("1", "2", "3", "4"), 120_000, numbering)

    def subset(folder: Path) -> DataSet:
        note = "trained on 18,349 of the 120,000 training articles of AG News: not comparable with published results"
        parts = [_labelled(folder / name, "text") for name in copy]
        return _data_set("ag-news", parts, ("0", "1", "2", "3"), 18_349, numbering, note)

    copy = ("train_subset.csv.gz", "test.csv.gz")
    return files.read("ag_news", AG_NEWS, official, data_dir=data_dir, copies={copy: subset})


def sst2(data_dir: Path | None, numbering: Numbering) -> DataSet:
    """SST-2, is a sentence of a film review positive: 67,349 sentences and phrases, GLUE's 872 to test with.

    Inputs (n, tokens) are numbers of words.

    Guarantee: a record is one sentence or phrase. Phrases were cut from sentences, so several may be parts of one.
    """

    def official(folder: Path) -> DataSet:
        archive = folder / "SST-2.zip"
        try:
            with zipfile.ZipFile(archive) as opened:
                texts = {archive / name: opened.read(f"SST-2/{name}").decode() for name in ("train.tsv", "dev.tsv")}
        except files.DAMAGED_ZIP as error:
            raise DataError(f"{archive} is damaged or not SST-2 ({error}); download it again") from error
        return sentences({path: _tab_separated(io.StringIO(text)) for path, text in texts.items()})

    def sentences(lines: Mapping[Path, tables.Rows]) -> DataSet:
        parts = [_labelled(path, "sentence", of_file) for path, of_file in lines.items()]
        return _data_set("sst2", parts, ("0", "1"), 67_349, numbering)

    def of_copy(folder: Path) -> DataSet:
        return sentences({folder / name: tables.parsed(folder / name, _tab_separated) for name in copy})

    copy = ("train.tsv.gz", "dev.tsv.gz")
    return files.read("sst2", SST2, official, data_dir=data_dir, copies={copy: of_copy})


def imdb(data_dir: Path | None, numbering: Numbering) -> DataSet:
    """IMDB, is a film review positive: 25,000 reviews and 25,000 to test with; inputs (n, tokens) are numbers of words.

    Guarantee: a record is one review. There is none for a larger unit, such as all reviews of one author.
    Source: Maas et al. 2011, the Large Movie Review Dataset.
    """

    def official(folder: Path) -> DataSet:
        archive = folder / "aclImdb_v1.tar.gz"
        try:
            texts = {name: text.decode() for name, text in files.members(archive, lambda n: bool(_REVIEW.fullmatch(n)))}
        except UnicodeDecodeError as error:
            raise DataError(f"{archive} is damaged ({error}); download it again") from error
        of_splits = [[name for name in texts if name.startswith(f"aclImdb/{split}/")] for split in ("train", "test")]
        if not all(of_splits):
            raise DataError(f"{archive}: there are no reviews in train or in test")
        parts = [(archive, [texts[n] for n in names], [n.split("/")[2] for n in names]) for names in of_splits]
        return _data_set("imdb", parts, ("neg", "pos"), 25_000, numbering)

    def of_copy(folder: Path) -> DataSet:
        parts = [_labelled(folder / name, "text") for name in copy]
        return _data_set("imdb", parts, ("0", "1"), 25_000, numbering)

    copy = ("train.csv.xz", "test.csv.xz")
    return files.read("imdb", IMDB, official, data_dir=data_dir, copies={copy: of_copy})


def _tab_separated(stream: TextIO) -> tables.Rows:
    """The fields of each line, in which a quote is like any character."""
    return {number: line.split("\t") for number, line in enumerate(stream.read().split("\n"), 1) if line}


def _labelled(path: Path, text: str, lines: tables.Rows | None = None) -> Part:
    """The columns ``text`` and label; the first line has the names of the columns."""
    (_, header), *rows = ((tables.parsed(path, tables.fields) if lines is None else lines) or {0: []}).items()
    found = tables.table(path, header=header, rows=dict(rows))
    refuse(str(path), [f"there is no column {name!r}" for name in ("label", text) if name not in found])
    return path, found[text], found["label"]


def _data_set(
    name: str, parts: Sequence[Part], classes: Sequence[str], size: int, numbering: Numbering, note: str = ""
) -> DataSet:
    splits = []
    for path, texts, labels in parts:
        targets = codes(labels, classes)
        if unknown := np.flatnonzero(targets < 0).tolist():
            raise DataError(f"{path}: the class is none of {', '.join(classes)} {in_rows(unknown)}")
        splits.append(Split(numbering.number(texts), targets))
    return DataSet(name, *splits, classes=len(classes), declared_size=size, note=note, words=numbering.size)


TABLES = {
    "ag-news-words": BuiltIn(ag_news, "news articles on four topics", texts=True),
    "sst2": BuiltIn(sst2, "sentences of film reviews: positive?", texts=True),
    "imdb": BuiltIn(imdb, "whole film reviews: positive?", texts=True),
    "adult": BuiltIn(adult, "census records: is the income above 50,000 dollars?"),
}
