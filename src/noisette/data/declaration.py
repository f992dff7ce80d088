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
    """The size of images in pixels, and whether they have one grey channel instead of three.

    ``fitted``: each image is turned as its camera says, laid on white where it is transparent, scaled until it covers
    the size, and cut to its middle; otherwise an image of another form is refused.

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
            codecs.lookup(self.encoding)
        except LookupError:
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
        if self.classes is None:
            return ()
        return tuple(map(str, range(self.classes))) if isinstance(self.classes, int) else tuple(self.classes)

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
                "columns: for columns of a table only; leave it out": bool(self.columns),
                "text: for columns of a table only; leave it out": bool(self.text),
                f"test: a separate file is for tables only; here the test split is {test_place}": self.test is not None,
                "decimal and skip_unlabelled: for tables only; leave them out": self.skip_unlabelled
                or self.decimal != ".",
                "users: a column of a table; for others give noisette.privatize the users of records": bool(self.users),
            }
        refuse(subject, [problem for problem, is_so in found.items() if is_so])
        return 1 if self.target else len(self.class_names), self.size or 0
