"""The built-in table, Adult (Census Income)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from noisette.data import files, tables
from noisette.data.columns import Category, Columns, Declaration, Number
from noisette.data.dataset import DataSet, Split, refuse
from noisette.data.files import BuiltIn

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

    def read(folder: Path, suffix: str = "") -> DataSet:
        splits = [_incomes(folder / f"{name}{suffix}") for name in ADULT.files]
        return DataSet("adult", *splits, classes=2, declared_size=32_561)

    copies = {tuple(f"{name}.gz" for name in ADULT.files): partial(read, suffix=".gz")}
    return files.read("adult", ADULT, read, data_dir=data_dir, copies=copies)


def _incomes(path: Path) -> Split:
    rows = [
        row for row in tables.parsed(path, tables.fields) if not row[0].startswith("|")
    ]  # the test file begins with a comment
    columns = tables.table(path, header=[*ATTRIBUTES, _INCOME.label], rows=rows)
    income = [text.rstrip(".") for text in columns[_INCOME.label]]  # labels of the test file end with a dot
    split, problems = tables.encode({**columns, _INCOME.label: income}, _INCOME, _INCOME.features(ATTRIBUTES))
    refuse(str(path), problems)
    return split


TABLES = {"adult": BuiltIn(adult, "census records: is the income above 50,000 dollars?")}
