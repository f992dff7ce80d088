"""What a user states about files of their own. Domains are declared, never inferred from private records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from noisette.data.errors import refuse


@dataclass(frozen=True)
class Declaration:
    """Public facts about files of the user's own.

    classes: how many there are, labels being 0..classes-1; or their names in the order of their numbers.
    size: about how many training records there are, as known to the public. Need not be exact.
    label: the CSV column which holds the label.
    test: a second CSV with the same columns, for testing.
    ranges: CSV column -> (lowest, highest); its values are clipped to that and mapped to [-1, 1].
    categories: CSV column -> every text it may hold; it becomes one input per text, 0 or 1.

    Guarantee: everything the model's shape and the plan of the run depend on is stated here, so that neither
    tells anything about a record.

    Raises:
        DataError: lists what contradicts itself.

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

    def __post_init__(self) -> None:
        names = self.class_names
        problems = []
        if self.classes is not None and (len(names) < 2 or len(set(names)) < len(names)):
            problems.append(f"classes: expected two or more, all different, got {self.classes}")
        if self.size is not None and self.size < 1:
            problems.append(f"size: expected at least 1, got {self.size}")
        for column, (low, high) in self.ranges.items():
            if not -math.inf < low < high < math.inf:
                problems.append(f"ranges: expected finite low < high for column {column!r}, got ({low}, {high})")
        for column, texts in self.categories.items():
            if not texts or len(set(texts)) < len(texts):
                problems.append(f"categories: expected one or more, all different, for column {column!r}")
        problems += [
            f"column {column!r} has both a range and categories; declare one of them"
            for column in sorted(self.ranges.keys() & self.categories.keys())
        ]
        if self.label in self.ranges.keys() | self.categories.keys():
            problems.append(f"the label column {self.label!r} takes neither range nor categories, but classes")
        refuse("declaration", problems)

    @property
    def class_names(self) -> tuple[str, ...]:
        """How each class is written in the files, in the order of the class numbers; () if undeclared."""
        if self.classes is None:
            return ()
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else tuple(self.classes)

    def public_facts(self, subject: str) -> tuple[int, int]:
        """Number of classes and size, both declared, for the files called ``subject``.

        Raises:
            DataError: names the ones that were not declared.
        """
        problems = []
        if self.classes is None:
            problems.append("declare classes: how many there are, or their names; they are not read off the records")
        if self.size is None:
            problems.append("declare size: the publicly known number of records; it is not counted from them")
        refuse(subject, problems)
        assert self.size is not None
        return len(self.class_names), self.size

    def refuse_csv_facts(self, subject: str, *, test_place: str) -> None:
        """Nothing if only classes and size are declared, all that files other than CSV take.

        Raises:
            DataError: names each declaration that would have no effect on ``subject``.
        """
        problems = []
        if self.test is not None:
            problems.append(f"test: a file of its own is for CSV; here the test split lies in {test_place}")
        for fact, columns in (("ranges", self.ranges), ("categories", self.categories)):
            if columns:
                problems.append(f"{fact}: for the columns of a CSV only; leave it out")
        refuse(subject, problems)
