"""The data sets that a recipe names, with what it declares about them."""

from __future__ import annotations

from pathlib import Path

from noisette import data as data_sets
from noisette.data import DataSet, Declaration
from noisette.data.columns import Columns
from noisette.data.holdout import hold_out
from noisette.data.image_form import ImageForm
from noisette.data.numbering import Numbering
from noisette.data.target import Target
from noisette.models.local_folder import is_folder_of_model
from noisette.training.recipe import Recipe


def load_data(recipe: Recipe, data_dir: Path | None, *, holdout_key: bytes = b"") -> DataSet:
    """The records of a recipe, as it declares them.

    Args:
        recipe: names the data set and the part to hold out.
        data_dir: where built-in sets are looked for.
        holdout_key: secret and random; it decides which records are held out. Without it none are.

    Raises:
        DataError: the records are not as declared.
    """
    section = recipe.data
    data = data_sets.load(section.name, data_dir=data_dir, declaration=declaration_of(recipe))
    return data if section.holdout is None or not holdout_key else hold_out(data, section.holdout, holdout_key)


def declaration_of(recipe: Recipe) -> Declaration:
    """What a recipe declares about its records.

    Raises:
        DataError: it contradicts itself.
    """
    section, model = recipe.data, recipe.model.name
    return Declaration(
        classes=section.classes,
        size=section.size,
        label=section.label,
        test=Path(section.test) if section.test else None,
        ranges=section.ranges,
        categories=section.categories,
        users=section.users,
        columns=Columns.of(section.columns) if section.columns else None,
        target=None if section.target is None else Target(*section.target, section.unit),
        text=section.text,
        numbering=Numbering(section.tokens, section.words, Path(model) if is_folder_of_model(model) else None),
        decimal=section.decimal,
        skip_unlabelled=section.skip_unlabelled,
        images=ImageForm(*section.image_size, section.grey) if section.image_size else None,
    )


def load_public(recipe: Recipe, data_dir: Path | None) -> DataSet | None:
    """The data set of the recipe's public examples, if it has any.

    Raises:
        DataError: they cannot be read.
    """
    section = recipe.public
    if section.data is None:
        return None
    own = section.data not in data_sets.names()
    declaration = Declaration(classes=section.classes, size=section.examples if own else None)
    return data_sets.load(section.data, data_dir=data_dir, declaration=declaration)
