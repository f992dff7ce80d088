"""What users state about their own files: domains are declared, never inferred from private records."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from noisette import errors as checks
from noisette.data.columns import Columns, Number
from noisette.data.dataset import Target, refuse
from noisette.data.words import Numbering

if TYPE_CHECKING:
    from PIL import Image

_MOST_CLASSES = 1_000_000
_BETWEEN = ("", ",", ".", " ", "'", "\u2019", "\u00a0", "\u202f")  # thousands
MODES = ("L", "RGB")  # Pillow's names for 8-bit grey and 8-bit colour
_CONVERTIBLE = frozenset({*MODES, "1", "P", "LA", "PA", "RGBA", "CMYK", "YCbCr"})  # all have 8 bits a channel or less


@dataclass(frozen=True)
class ImageForm:
    """The size and the colours of images.

    width, height: in pixels.
    grey: whether images have one channel instead of three.
    fitted: whether each image is turned as its camera says, laid on white where it is transparent, scaled until it
        covers the size, and cut to its middle; otherwise an image of another form is refused.

    Guarantee: what becomes of an image depends on this declaration and on the image, never on another one.

    Raises:
        TypeError, ValueError: a length is not a whole number of at least 1.
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

    def __str__(self) -> str:
        return f"{self.width} x {self.height} pixels in {'grey' if self.grey else 'colour'}"


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
    about a record.

    Raises:
        DataError: lists every value that is invalid or contradicts another.

    >>> Declaration(classes=("no", "yes"), size=1000).class_names
    ('no', 'yes')
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
        names = self.class_names
        problems: list[str] = []

        def refuse_if(wrong: bool, problem: str) -> None:
            problems.extend([problem] if wrong else [])

        refuse_if(
            self.classes is not None and (len(names) < 2 or len(set(names)) < len(names)),
            f"classes: expected two or more different classes, got {self.classes}",
        )
        refuse_if(self.size is not None and self.size < 1, f"size: expected at least 1, got {self.size}")
        refuse_if(self.decimal not in (".", ","), f"decimal: expected a point or a comma, got {self.decimal!r}")
        refuse_if(
            self.thousands not in _BETWEEN or self.thousands == self.decimal,
            f"thousands: expected a comma, a point, a space or an apostrophe and not the sign of decimals, got "
            f"{self.thousands!r}",
        )
        try:
            codecs.lookup(self.encoding)
        except LookupError:
            problems.append(f'encoding: expected one that Python knows, such as "latin-1", got {self.encoding!r}')
        problem = f"the column of users is no input and no label, so {self.users!r} cannot be both"
        refuse_if(self.users is not None and self.users == self.label, problem)
        problem = "classes are for labels and target is for a number; declare one of them"
        refuse_if(self.target is not None and self.classes is not None, problem)
        problem = "a text is the only input; leave out columns"
        refuse_if(self.text is not None and self.columns is not None, problem)
        problem = f"the column {self.text!r} is the text; it cannot be the label or the users too"
        refuse_if(self.text is not None and self.text in (self.label, self.users), problem)
        for role, name in (("label", self.label), ("column of users", self.users)):
            problem = f'column {name!r} is the {role}; leave its declaration out, or declare kind = "ignored"'
            refuse_if(self.columns is not None and name in self.columns.names, problem)
        refuse("declaration", problems)

    def features(self, columns: Iterable[str]) -> Columns:
        """The columns that are inputs: those declared; or all of ``columns`` but label and users, as numbers."""
        if self.columns is not None:
            return self.columns
        return Columns({name: Number() for name in columns if name not in (self.label, self.users)})

    @property
    def class_names(self) -> tuple[str, ...]:
        """The label of each class as the files have it, in the order of the class numbers; () if undeclared."""
        if self.classes is None:
            return ()
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else tuple(self.classes)

    def public_facts(self, subject: str, *, test_place: str | None = None, images: bool = False) -> tuple[int, int]:
        """The declared number of classes (1 for regression) and size; ``subject`` names the files in errors.

        ``test_place`` is where the test examples of files that are no table are: facts about columns are not for these.

        Raises:
            DataError: names each of the two that was not declared, and each declaration that has no effect.
        """
        problems = []
        if self.classes is None and self.target is None:
            problems.append(
                "declare classes: their number or their names; they are not inferred from the records. Or declare "
                "target, the bounds of a number"
            )
        if self.size is None:
            problems.append("declare size: the publicly known number of records; records are not counted")
        if self.images is not None and not images:
            problems.append("image_size: for folders of images only; leave it out")
        if self.target is not None and images:
            problems.append("these are images, which have classes; declare these instead of a target")
        if test_place is not None:
            of_tables = {name: getattr(self, name) for name in ("columns", "text")}
            problems += [f"{name}: for columns of a table only; leave it out" for name in of_tables if of_tables[name]]
            if self.test is not None:
                problems.append(f"test: a separate file is for tables only; here the test split is {test_place}")
            if self.decimal != "." or self.skip_unlabelled:
                problems.append("decimal and skip_unlabelled: for tables only; leave them out")
            if self.users is not None:
                problems.append("users: a column of a table; for others give noisette.privatize the users of records")
        refuse(subject, problems)
        return 1 if self.target else len(self.class_names), self.size or 0
