"""What users declare about their columns and files, and the inputs that values become: nothing is inferred."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, TypeVar, dataclass_transform

import numpy as np
import pydantic

from noisette import errors as checks
from noisette.data.dataset import DataError, Target, in_rows, refuse, scaled
from noisette.data.words import Numbering, number_of

if TYPE_CHECKING:
    from PIL import Image

REFUSE: Final = "refuse"
INDICATOR, OWN_CATEGORY = "indicator", "own category"
MISSING = ("", "?", "-", "--", ".", "na", "n/a", "#n/a", "nan", "null", "none", "<na>")  # compared in lower case
MISSING_VALUE, NO_NUMBER = "a value is missing", "not a finite number (without % or $)"
# Values: texts of a file, or the values of a frame. pandas is imported where it is used, as most commands read none.


def missing(values: Iterable[Any], words: Iterable[str] = ()) -> np.ndarray:
    """Which values are missing, bool, (n,): empty, ``None``, NaN, or a word for that such as NA or one of ``words``."""
    known = {*MISSING, *(word.strip().lower() for word in words)}
    return np.array([text_of(value).lower() in known for value in values], bool)


def numbers(values: Iterable[Any]) -> np.ndarray:
    """The numbers of a column, float64, (n,); NaN where a value is missing or no number."""
    import pandas

    return np.asarray(pandas.to_numeric(pandas.Series(list(values), dtype=object), errors="coerce"), np.float64)


def text_of(value: Any) -> str:
    """A value as a text without spaces around it; a whole number has no decimals, and ``None`` or NaN is ""."""
    if isinstance(value, str):
        return value.strip()
    whole = isinstance(value, float | np.floating) and value.is_integer()
    text = str(int(value)) if whole else str(value)
    return "" if text in ("None", "nan", "NaT", "<NA>") else text


def codes(column: Sequence[str], names: Sequence[str]) -> np.ndarray:
    """The index of each text in ``names``, int64, (n,); -1 where it is not among them.

    A text that is no name as it is written is compared without the spaces around it, without regard to upper and lower
    case if that tells all names apart, and as a whole number: programs write 2 as 2.0 where other values are missing.
    """
    import pandas

    known, texts = pandas.Index(names, dtype=object), pandas.Series(list(column), dtype=object)
    folded = pandas.Index([name.casefold() for name in names], dtype=object)
    found = known.get_indexer(texts)
    stripped = texts.str.strip()
    for spelled in (stripped, stripped.str.replace(r"^(-?\d+)\.0*$", r"\1", regex=True)):
        found = np.where(found < 0, known.get_indexer(spelled), found)
        if folded.is_unique:
            found = np.where(found < 0, folded.get_indexer(spelled.map(str.casefold)), found)
    return found.astype(np.int64)


class DeclarationError(ValueError):
    """What is declared contradicts itself or has another form, as ``problems`` say."""

    def __init__(self, problems: Sequence[str], wrong: Iterable[str] = ()) -> None:
        super().__init__("; ".join(problems))
        self.problems, self.wrong = problems, frozenset(wrong)  # these fields


def meant(name: str, names: Iterable[str], otherwise: str = "") -> str:
    """A question after the nearest of these names, or what is said where none is near.

    >>> meant("Lable", ["age", "label"]), meant("triage", ["age", "label"], "it has 'age', 'label'")
    ("did you mean 'label'?", "it has 'age', 'label'")
    """
    known = {other.casefold(): other for other in names}
    close = get_close_matches(name.casefold(), known, n=1, cutoff=0.75)
    return f"did you mean {known[close[0]]!r}?" if close else otherwise


def unknown_key(key: str, known: Iterable[str]) -> str:
    """A message that names the nearest known key, or all of them."""
    known = list(known)
    all_of_them = f"known here: {', '.join(known) or 'no other'}"
    return f"unknown key {key}: {meant(key, known, all_of_them)}"


Declared = TypeVar("Declared")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def declared(cls: type[Declared]) -> type[Declared]:
    """A frozen dataclass whose fields pydantic checks strictly; all problems are raised as one ``DeclarationError``.

    A method ``problems`` gives those that fields of the right types may have.
    """
    config = pydantic.ConfigDict(strict=True, extra="forbid")
    made: Any = pydantic.dataclasses.dataclass(frozen=True, config=config)(cls)
    validate = made.__init__

    def checked(self: Any, *given: Any, **named: Any) -> None:
        try:
            validate(self, *given, **named)
        except pydantic.ValidationError as error:
            names = [known.name for known in fields(made)]
            raise DeclarationError(*_problems(error, names, dict(zip(names, given, strict=False)) | named)) from None
        if problems := list(getattr(self, "problems", lambda: ())()):
            raise DeclarationError(problems)

    made.__init__ = checked
    return made


def _problems(error: Any, names: list[str], given: Mapping[str, Any]) -> tuple[list[str], set[str]]:
    """A message for each key that pydantic found unknown, absent, or not of the expected type, and these keys."""
    found, expected, wrong = [], dict[str, list[str]](), set[str]()
    for item in error.errors(include_url=False):
        place = next(iter(item["loc"]), "")
        name = names[place] if isinstance(place, int) and place < len(names) else str(place)
        wrong.add(name)
        if item["type"] == "value_error":
            raised = item.get("ctx", {})["error"]
            found += getattr(raised, "problems", [str(raised)])
        elif item["type"] == "unexpected_positional_argument":
            found.append(f"expected at most {len(names)} values: {', '.join(names)}")
        elif item["type"] == "unexpected_keyword_argument":
            found.append(unknown_key(name, names))
        elif name not in given:
            found.append(f"declare {name}")
        else:
            kind = "more values" if item["type"] == "missing" else item["msg"].removeprefix("Input should be ")
            expected.setdefault(name, []).append(kind)
    for name, kinds in expected.items():
        found.append(f"{name} = {given[name]!r} is not of the expected type: {' or '.join(dict.fromkeys(kinds))}")
    return found, wrong


def _as_texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(map(text_of, value))
    raise ValueError('expected a list of texts, such as ["a", "b"]')


def _as_date(value: Any) -> date:
    try:
        return date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError(f'expected a date as a text in quotes, such as "2024-12-31", got {value!r}') from None


_Finite = Annotated[float, pydantic.AllowInfNan(False)]
_Text = Annotated[str, pydantic.BeforeValidator(lambda value: value if isinstance(value, str) else text_of(value))]
_Texts = Annotated[tuple[str, ...], pydantic.BeforeValidator(_as_texts)]
_Date = Annotated[date, pydantic.BeforeValidator(_as_date)]
_Refused = dict[str, np.ndarray]  # the rows that a declaration refuses, as a mask, by their problem
# Each kind of column has ``inputs``, a name for each input that it makes, and ``encode``, the inputs of its values,
# float32, (n, width), with what is refused. ``problems`` says what contradicts itself.


@declared
class Number:
    """A column of numbers: one input, in [-1, 1] if it has bounds.

    low, high: declared bounds, both or none; values outside are clipped.
    missing: what a missing value counts as: a number; "refuse"; or "indicator": the middle of the bounds (0 without),
        and a second input, which is 1 for it.
    missing_words: what stands for a missing value in this column beside the usual words, such as "-9".
    """

    low: _Finite | None = None
    high: _Finite | None = None
    missing: _Finite | Literal["refuse", "indicator"] = REFUSE
    missing_words: _Texts = ()

    def problems(self) -> Iterator[str]:
        low, high, missing = self.low, self.high, self.missing
        if (low is None) != (high is None):
            yield "declare both low and high, or none of them"
        elif low is not None and high is not None and not low < high:
            yield f"expected low < high, got low = {low:g}, high = {high:g}"
        elif low is not None and high is not None and not isinstance(missing, str) and not low <= missing <= high:
            yield f"expected missing from {low:g} to {high:g}, got {missing:g}"

    def inputs(self, name: str) -> list[str]:
        return [name, f"{name} is missing"] if self.missing == INDICATOR else [name]

    def encode(self, values: Sequence[Any]) -> tuple[np.ndarray, _Refused]:
        return self.encode_numbers(numbers(values), missing(values, self.missing_words), NO_NUMBER)

    def encode_numbers(self, found: np.ndarray, absent: np.ndarray, problem: str) -> tuple[np.ndarray, _Refused]:
        """The same of numbers, of which some are missing; ``problem`` says of the others what is no number."""
        refused = {MISSING_VALUE: absent} if self.missing == REFUSE else {}
        middle = 0.0 if self.low is None or self.high is None else (self.low + self.high) / 2
        found = np.where(absent, middle if isinstance(self.missing, str) else self.missing, found)
        with np.errstate(over="ignore"):
            bad = np.isnan(found) if self.low is not None else ~np.isfinite(found.astype(np.float32))
            if self.low is not None and self.high is not None:
                found = scaled(found, low=self.low, high=self.high)
            block = np.stack([found, absent], axis=1)[:, : len(self.inputs(""))].astype(np.float32)
        return block, refused | {problem: bad}


def _days(values: Sequence[Any], form: str) -> np.ndarray:
    """Days since 1970, float64, (n,); NaN where a value is no date in this form."""
    import pandas

    found = pandas.to_datetime(pandas.Series(list(values), dtype=object), format=form, errors="coerce", utc=True)
    return np.asarray((found - pandas.Timestamp(0, tz="UTC")) / pandas.Timedelta(days=1), np.float64)


@declared
class Date:
    """A column of dates, with or without a time: one input, in [-1, 1], as of a number of days.

    low, high: the declared first and last day, as texts such as "1930-01-01"; dates outside are clipped.
    missing, missing_words: as for a number.
    format: how dates are written, in the letters of Python, such as "%d.%m.%Y".
    """

    low: _Date
    high: _Date
    missing: Literal["refuse", "indicator"] = REFUSE
    format: str = "ISO8601"
    missing_words: _Texts = ()

    def problems(self) -> Iterator[str]:
        try:
            self._number  # noqa: B018 - it is checked
        except DeclarationError as error:
            yield from (f"{problem} (dates as days since 1970)" for problem in error.problems)

    @property
    def _number(self) -> Number:
        low, high = _days([self.low, self.high], "ISO8601").tolist()
        return Number(low, high, self.missing)

    def inputs(self, name: str) -> list[str]:
        return self._number.inputs(name)

    def encode(self, values: Sequence[Any]) -> tuple[np.ndarray, _Refused]:
        days, absent = _days(values, self.format), missing(values, self.missing_words)
        return self._number.encode_numbers(days, absent, f"not a date in the format {self.format}")


@declared
class Category:
    """A column of texts: one input for each category, 1 for that of the value and 0 elsewhere.

    categories: every text that is known, in the order of the inputs. Where no text is a category as it is written,
        upper and lower case count as the same, and 2.0 as 2.
    missing: what a missing value counts as: one of the categories; "own category", one more input; or "refuse". Words
        for missing values that are declared as categories are categories.
    other: the same for texts that are no category.
    missing_words: as for a number.
    """

    categories: _Texts
    missing: _Text = REFUSE
    other: _Text = REFUSE
    missing_words: _Texts = ()

    def problems(self) -> Iterator[str]:
        known = self.categories
        if not known or len(set(known)) < len(known):
            yield "expected one or more different categories"
        for word in (REFUSE, OWN_CATEGORY):
            if word in known:
                yield f"{word!r} is a rule for missing values; give the category another name"
        for name, rule in (("missing", self.missing), ("other", self.other)):
            if rule not in (REFUSE, OWN_CATEGORY, *known):
                yield f'expected {name} to be one of the categories, "{OWN_CATEGORY}" or "{REFUSE}", got {rule!r}'

    def inputs(self, name: str) -> list[str]:
        added = [word for word, rule in (("missing", self.missing), ("other", self.other)) if rule == OWN_CATEGORY]
        return [f"{name} = {text}" for text in self.categories] + [f"{name} is {word}" for word in added]

    def encode(self, values: Sequence[Any]) -> tuple[np.ndarray, _Refused]:
        texts, width, refused = list(map(text_of, values)), len(self.categories), {}
        indices = codes(texts, self.categories)
        absent = (indices < 0) & missing(texts, self.missing_words)
        for problem, rule, rows in (
            (MISSING_VALUE, self.missing, absent),
            ("none of its declared categories", self.other, (indices < 0) & ~absent),
        ):
            if rule == REFUSE:
                refused[problem] = rows
            else:
                indices[rows] = width if rule == OWN_CATEGORY else self.categories.index(rule)
                width += rule == OWN_CATEGORY
        return (indices[:, None] == np.arange(width)).astype(np.float32), refused


@declared
class Hashed:
    """A column of texts of which too many are possible to list them, as of codes of diagnoses or names of cities.

    width: a text, in lower case, is hashed to one of so many inputs, which is 1; texts may share one.
    missing, missing_words: as for a category.

    Guarantee: the hash is fixed, so an input depends on the text alone.
    """

    width: Annotated[int, pydantic.Field(ge=2, le=65_536)]
    missing: Literal["refuse", "own category"] = REFUSE
    missing_words: _Texts = ()

    def inputs(self, name: str) -> list[str]:
        return [f"{name} # {k}" for k in range(self.width)] + [f"{name} is missing"] * (self.missing == OWN_CATEGORY)

    def encode(self, values: Sequence[Any]) -> tuple[np.ndarray, _Refused]:
        texts, absent = list(map(text_of, values)), missing(values, self.missing_words)
        indices = np.array([number_of(text.casefold(), self.width + 1) - 1 for text in texts], np.int64)
        block = np.where(absent, self.width, indices)[:, None] == np.arange(len(self.inputs("")))
        return block.astype(np.float32), {MISSING_VALUE: absent} if self.missing == REFUSE else {}


@declared
class Ignored:
    """A column that is not read."""


Column = Number | Date | Category | Hashed | Ignored
KINDS: Mapping[str, type[Column]] = {kind.__name__.lower(): kind for kind in (Number, Date, Category, Hashed, Ignored)}
_WAYS_OUT = {
    MISSING_VALUE: "; declare what it counts as, fill it in, or leave the row out",
    "none of its declared categories": "; declare them, or what others count as",
    NO_NUMBER: "; for 1.234,5 declare decimal and thousands above [columns], for n.k. missing_words, or categories",
}


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are inputs of a model, with what is publicly known about each.

    >>> columns = Columns.of({
    ...     "age": {"kind": "number", "low": 0, "high": 100, "missing": "indicator"},
    ...     "job": {"kind": "category", "categories": ["cook", "smith"], "other": "own category"},
    ... })
    >>> columns.inputs
    ('age', 'age is missing', 'job = cook', 'job = smith', 'job is other')
    >>> columns.encode({"age": ["25", ""], "job": ["smith", "spy"]})
    array([[-0.5,  0. ,  0. ,  1. ,  0. ],
           [ 0. ,  1. ,  0. ,  0. ,  1. ]], dtype=float32)

    Guarantee: names and number of inputs, and what a value is mapped to, depend on the declaration alone, on no row.
    """

    declared: Mapping[str, Column]

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]], source: str = "columns") -> Self:
        """The columns in tables of plain values, as a TOML file has them: ``kind``, and the fields of that kind.

        A ``DataError`` lists every unknown kind or field, value of another type and contradiction.
        """
        problems: list[str] = []
        found: dict[str, Column] = {}
        for name, table in tables.items():
            given = dict(table) if isinstance(table, Mapping) else {}
            kind = given.pop("kind", None)
            if not isinstance(table, Mapping):
                problems.append(f"{name!r} is no table; write [columns.{name}] and the lines kind = ... below it")
            elif str(kind) not in KINDS:
                problems.append(f"{name!r}: expected kind to be one of {', '.join(KINDS)}, got {kind!r}")
            else:
                try:
                    found[name] = KINDS[str(kind)](**given)
                except DeclarationError as error:
                    problems += [f"{name!r}: {problem}" for problem in error.problems]
        refuse(source, problems)
        return cls(found)

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """The columns in the tables ``[columns.NAME]`` of a TOML file, such as ``noisette schema`` writes."""
        try:
            tables = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{path} is not a TOML file: {error}") from error
        if not isinstance(tables.get("columns"), dict):
            raise DataError(f"{path} declares no columns; write a table [columns.NAME] for each")
        return cls.of(tables["columns"], str(path))

    @property
    def _used(self) -> dict[str, Number | Date | Category | Hashed]:
        return {name: column for name, column in self.declared.items() if not isinstance(column, Ignored)}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._used)

    @property
    def inputs(self) -> tuple[str, ...]:
        """A name for each input."""
        return tuple(input_ for name, column in self._used.items() for input_ in column.inputs(name))

    @property
    def width(self) -> int:
        return len(self.inputs)

    def encode(self, rows: Any) -> np.ndarray:
        """The inputs of each row, float32, (n, inputs).

        ``rows`` has the values by column, as a mapping or a frame of pandas: texts, numbers, dates, ``None``. Columns
        that are not declared are not read. A ``DataError`` lists the columns that are absent, and those with a value
        that is refused, with the rows and without the value.
        """
        refuse("columns", self.absent(rows))
        inputs, problems = self.encoded(rows)
        refuse("the rows", problems)
        return inputs

    def absent(self, rows: Any) -> list[str]:
        """A message for each declared column that the rows lack."""
        absent = [name for name in self.names if name not in rows]
        return [f"there is no column {name!r}; {meant(name, map(str, rows), 'add it')}" for name in absent]

    def encoded(self, rows: Any, numbers: Sequence[int] | None = None) -> tuple[np.ndarray, list[str]]:
        """The inputs, and a message for each column and problem, with the numbers of rows; then do not use inputs."""
        blocks, problems = [], []
        for name, column in self._used.items():
            block, refused = column.encode(rows[name])
            blocks.append(block)
            for problem, mask in refused.items():
                if bad := np.flatnonzero(mask).tolist():
                    problems.append(f"column {name!r}: {problem} {in_rows(bad, numbers)}{_WAYS_OUT.get(problem, '')}")
        if not blocks:
            raise DataError("no column is an input: declare a number, a date or a category")
        return np.concatenate(blocks, axis=1, dtype=np.float32), problems


_MOST_CLASSES = 1_000_000
_BETWEEN = ("", ",", ".", " ", "'", "\u2019", "\u00a0", "\u202f")  # thousands
_CONVERTIBLE = frozenset({"L", "RGB", "1", "P", "LA", "PA", "RGBA", "CMYK", "YCbCr"})  # of 8 bits a channel or less


@dataclass(frozen=True)
class ImageForm:
    """The size of images in pixels, and whether they have one grey channel instead of three.

    ``fitted``: each is turned as its camera says, laid on white, scaled until it covers the size, and cut to its
    middle; otherwise an image of another form is refused.

    Guarantee: what becomes of an image depends on this declaration and on the image, never on another one.
    """

    width: int
    height: int
    grey: bool = False
    fitted: bool = True

    def __post_init__(self) -> None:
        checks.all_of(lambda: checks.count(width=self.width), lambda: checks.count(height=self.height))

    def pixels(self, image: Image.Image) -> np.ndarray | None:
        """The pixels as bytes, (height, width) or (height, width, 3); ``None`` where the image is refused."""
        mode, size = "L" if self.grey else "RGB", (self.width, self.height)
        if not self.fitted:
            return np.asarray(image) if (image.mode, image.size) == (mode, size) else None
        if image.mode not in _CONVERTIBLE:
            return None
        from PIL import Image, ImageOps  # imported here, as most commands read no image

        image.draft(None, (max(size), max(size)))  # a JPEG is decoded at a fraction of its size, no smaller than this
        turned = ImageOps.exif_transpose(image)
        if turned.has_transparency_data:
            opaque = turned.convert("RGBA")
            turned = Image.alpha_composite(Image.new("RGBA", opaque.size, "white"), opaque)
        return np.asarray(ImageOps.fit(turned.convert(mode), size, Image.Resampling.BILINEAR))


@dataclass(frozen=True)
class Declaration:
    """Public facts about the user's own files.

    classes: their number, for labels 0..classes-1; or their names, in the order of their numbers.
    size: the publicly known number of training records; it need not be exact.
    label: the column of a table that holds the label.
    test: a second table with the same columns, for testing.
    users: the column that holds the user whom a record belongs to. It is no input.
    columns: what is declared about every column that is an input; without it each is the number that it holds.
    target: the bounds of the number in the label column, for regression instead of classes.
    text: the column that holds a text. It is then the only input.
    numbering: how texts become numbers of words.
    decimal: what stands before the decimals of a number in a CSV, a point or a comma.
    thousands: what stands between the thousands of a number in a CSV, such as a comma; nothing unless declared.
    encoding: of a CSV or JSON lines, such as "latin-1".
    skip_unlabelled: whether rows without a label are left out; otherwise they are refused.
    images: the form that each image of a folder is brought to.

    Guarantee: the model's shape and the plan of the run depend only on what is stated here, so neither reveals anything
    about a record. A ``DataError`` lists every value that is invalid or contradicts another.

    >>> Declaration(classes=3, size=1000).class_names
    ('0', '1', '2')
    """

    classes: int | tuple[str, ...] | None = None
    size: int | None = None
    label: str = "label"
    test: Path | None = None
    users: str | None = None
    columns: Columns | None = None
    target: Target | None = None
    text: str | None = None
    numbering: Numbering = field(default_factory=Numbering)
    decimal: str = "."
    thousands: str = ""
    encoding: str = "utf-8"
    skip_unlabelled: bool = False
    images: ImageForm | None = None

    def __post_init__(self) -> None:
        if isinstance(self.classes, int) and self.classes > _MOST_CLASSES:  # before their names are made
            refuse("declaration", [f"classes: expected at most {_MOST_CLASSES}, got {self.classes}"])
        names, label, users, text = self.class_names, self.label, self.users, self.text
        has_classes, has_text, has_columns = self.classes is not None, text is not None, self.columns is not None
        few = len(names) < 2 or len(set(names)) < len(names)
        found: dict[str, bool] = {
            f"classes: expected two or more different classes, got {self.classes}": has_classes and few,
            f"size: expected at least 1, got {self.size}": self.size is not None and self.size < 1,
            f"decimal: expected a point or a comma, got {self.decimal!r}": self.decimal not in (".", ","),
            "thousands: expected a comma, a point, a space or an apostrophe and not the sign of decimals, got "
            f"{self.thousands!r}": self.thousands not in _BETWEEN or self.thousands == self.decimal,
            f"the column of users is no input and no label, so {users!r} cannot be both": users == label,
            "classes are for labels and target is for a number; declare one of them": bool(self.target) and has_classes,
            "a text is the only input; leave out columns": has_text and has_columns,
            f"the column {text!r} is the text; it cannot be the label or the users too": has_text
            and text in (label, users),
        }
        for role, name in (("label", label), ("column of users", users)):
            problem = f'column {name!r} is the {role}; leave its declaration out, or declare kind = "ignored"'
            found[problem] = self.columns is not None and name in self.columns.names
        try:
            "".encode(self.encoding)
        except (LookupError, ValueError):
            found[f'encoding: expected one that Python knows, such as "latin-1", got {self.encoding!r}'] = True
        refuse("declaration", [problem for problem, is_so in found.items() if is_so])

    def features(self, columns: Iterable[str]) -> Columns:
        """The columns that are inputs: those declared; or all of ``columns`` but label and users, as numbers."""
        if self.columns is not None:
            return self.columns
        return Columns({name: Number() for name in columns if name not in (self.label, self.users)})

    @property
    def class_names(self) -> tuple[str, ...]:
        """The label of each class as the files have it, in the order of the class numbers; () if undeclared."""
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else tuple(self.classes or ())

    def public_facts(self, subject: str, *, test_place: str | None = None, images: bool = False) -> tuple[int, int]:
        """The declared number of classes (1 for regression) and size; ``subject`` names the files in errors.

        ``test_place`` is where the test examples of files that are no table are. A ``DataError`` names each of the two
        that was not declared, and each declaration that has no effect.
        """
        found: dict[str, bool] = {
            "declare classes: their number or their names; they are not inferred from the records. Or declare target, "
            "the bounds of a number": self.classes is None and self.target is None,
            "declare size: the publicly known number of records; records are not counted": self.size is None,
            "image_size: for folders of images only; leave it out": self.images is not None and not images,
            "these are images, which have classes; declare these instead of a target": bool(self.target) and images,
        }
        if test_place is not None:
            found |= {
                "columns and text: for tables only; leave them out": bool(self.columns or self.text),
                f"test: a separate file is for tables only; here the test split is {test_place}": self.test is not None,
                "decimal and skip_unlabelled: for tables only; leave them out": self.skip_unlabelled
                or self.decimal != ".",
                "users: a column of a table; for others give noisette.privatize the users of records": bool(self.users),
            }
        refuse(subject, [problem for problem, is_so in found.items() if is_so])
        return 1 if self.target else len(self.class_names), self.size or 0
