"""What users state about their own files: domains are declared, never inferred from private records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from noisette.data.column_kinds import Category, Number
from noisette.data.columns import Columns
from noisette.data.errors import refuse
from noisette.data.image_form import ImageForm
from noisette.data.numbering import Numbering
from noisette.data.target import Target

_MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Declaration:
    """Public facts about the user's own files.

    classes: their number, for labels 0..classes-1; or their names, in the order of their numbers.
    size: the publicly known number of training records; it need not be exact.
    label: the CSV column that holds the label.
    test: a second CSV with the same columns, for testing.
    ranges: CSV column -> (lowest, highest); its values are clipped to that and mapped to [-1, 1].
    categories: CSV column -> every text it may hold; it becomes one input per text, 0 or 1.
    users: the CSV column that holds the user whom a record belongs to. It is no input.
    columns: what is declared about every column that is an input, instead of ranges and categories.
    target: the bounds of the number in the label column, for regression instead of classes.
    text: the CSV column that holds a text. It is then the only input.
    numbering: how texts become numbers of words.
    decimal: what stands before the decimals of a number in a CSV, a point or a comma.
    skip_unlabelled: whether rows without a label are left out; otherwise they are refused.
    images: the form that each image of a folder is brought to.

    Guarantee: the model's shape and the plan of the run depend only on what is stated here, so neither reveals anything
    about a record.

    Raises:
        DataError: lists every value that is invalid or contradicts another.

    >>> Declaration(classes=("no", "yes"), size=1000, ranges={"age": (0, 100)}).class_names
    ('no', 'yes')
    >>> Declaration(classes=3, size=1000).class_names
    ('0', '1', '2')
    """

    classes: int | tuple[str, ...] | None = None
    size: int | None = None
    label: str = "label"
    test: Path | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    users: str | None = None
    columns: Columns | None = None
    target: Target | None = None
    text: str | None = None
    numbering: Numbering = field(default_factory=Numbering)
    decimal: str = "."
    skip_unlabelled: bool = False
    images: ImageForm | None = None

    def __post_init__(self) -> None:
        if isinstance(self.classes, int) and self.classes > _MOST_CLASSES:  # before their names are made
            refuse("declaration", [f"classes: expected at most {_MOST_CLASSES}, got {self.classes}"])
        names = self.class_names
        problems = []
        if self.classes is not None and (len(names) < 2 or len(set(names)) < len(names)):
            problems.append(f"classes: expected two or more different classes, got {self.classes}")
        if self.size is not None and self.size < 1:
            problems.append(f"size: expected at least 1, got {self.size}")
        if self.decimal not in (".", ","):
            problems.append(f"decimal: expected a point or a comma, got {self.decimal!r}")
        for column, (low, high) in self.ranges.items():
            if not -math.inf < low < high < math.inf:
                problems.append(f"ranges: expected finite low < high for column {column!r}, got ({low}, {high})")
        for column, texts in self.categories.items():
            if not texts or len(set(texts)) < len(texts):
                problems.append(f"categories: expected one or more different texts for column {column!r}")
        problems += [
            f"column {column!r} has both a range and categories; declare one of them"
            for column in sorted(self.ranges.keys() & self.categories.keys())
        ]
        if self.label in self.ranges.keys() | self.categories.keys():
            problems.append(f"the label column {self.label!r} has classes; it takes neither a range nor categories")
        if self.users is not None and self.users in {self.label} | self.ranges.keys() | self.categories.keys():
            problems.append(f"the column of users {self.users!r} is no input and no label; declare nothing else of it")
        if self.target is not None and self.classes is not None:
            problems.append("classes are for labels and target is for a number; declare one of them")
        if self.text is not None and (self.columns is not None or self.ranges or self.categories):
            problems.append("a text is the only input; leave out columns, ranges and categories")
        if self.text is not None and self.text in (self.label, self.users):
            problems.append(f"the column {self.text!r} is the text; it cannot be the label or the users too")
        if self.columns is not None:
            if self.ranges or self.categories:
                problems.append("columns are declared in full; leave out ranges and categories, or the columns")
            problems += [
                f'column {name!r} is the {role}; leave its declaration out, or declare kind = "ignored"'
                for role, name in (("label", self.label), ("column of users", self.users))
                if name in self.columns.names
            ]
        refuse("declaration", problems)

    def features(self, columns: Iterable[str]) -> Columns:
        """The columns that are inputs: those declared; or all of ``columns`` but label and users.

        Without a declaration of columns, one that has neither range nor categories is used as numbers.
        """
        if self.columns is not None:
            return self.columns
        ranges = {name: Number(*bounds) for name, bounds in self.ranges.items()}
        categories = {name: Category(tuple(texts)) for name, texts in self.categories.items()}
        names = [name for name in columns if name not in (self.label, self.users)]
        return Columns({name: ranges.get(name) or categories.get(name) or Number() for name in names})

    @property
    def class_names(self) -> tuple[str, ...]:
        """The label of each class as the files have it, in the order of the class numbers; () if undeclared."""
        if self.classes is None:
            return ()
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else tuple(self.classes)

    def public_facts(self, subject: str) -> tuple[int, int]:
        """The declared number of classes (1 for regression) and size; ``subject`` names the files in errors.

        Raises:
            DataError: names each of them that was not declared.
        """
        problems = []
        if self.classes is None and self.target is None:
            problems.append(
                "declare classes: their number or their names; they are not inferred from the records. Or declare "
                "target, the bounds of a number"
            )
        if self.size is None:
            problems.append("declare size: the publicly known number of records; records are not counted")
        refuse(subject, problems)
        assert self.size is not None
        return 1 if self.target else len(self.class_names), self.size

    def refuse_image_facts(self, subject: str) -> None:
        """Raise if something is declared that applies to folders of images only.

        Raises:
            DataError: it has no effect on ``subject``.
        """
        if self.images is not None:
            refuse(subject, ["image_size: for folders of images only; leave it out"])

    def refuse_csv_facts(self, subject: str, *, test_place: str) -> None:
        """Raise if more than classes and size is declared: the other facts apply to CSV files only.

        Raises:
            DataError: lists each declaration that has no effect on ``subject``.
        """
        problems = []
        if self.test is not None:
            problems.append(f"test: a separate file is for CSV only; here the test split is {test_place}")
        given = {"ranges": self.ranges, "categories": self.categories, "columns": self.columns, "text": self.text}
        for fact, value in given.items():
            if value:
                problems.append(f"{fact}: for CSV columns only; leave it out")
        if self.decimal != Declaration.decimal or self.skip_unlabelled:
            problems.append("decimal and skip_unlabelled: for CSV only; leave them out")
        if self.users is not None:
            problems.append("users: a column of a CSV; for other data give noisette.privatize the users of the records")
        refuse(subject, problems)
