"""The records that a recipe names, as it declares them. It imports no torch."""

from __future__ import annotations

from pathlib import Path

from noisette import data as data_sets
from noisette.data import DataSet, Declaration
from noisette.data.columns import Columns
from noisette.data.dataset import Target, hold_out
from noisette.data.declaration import ImageForm
from noisette.data.words import Numbering
from noisette.nn.models import names as model_names
from noisette.nn.models.backbones import folder_of
from noisette.training.recipe import Recipe


def check_names(recipe: Recipe) -> None:
    """Check what a recipe names and declares, as far as it takes neither torch nor reading a record.

    Raises:
        ValueError: there is no such model.
        DataError: there is no such data set, or the declaration contradicts itself.
    """
    for name in (recipe.data.name, recipe.public.data):
        if name is not None and name not in data_sets.names() and not Path(name).exists():
            data_sets.load(name)  # says which there are
    model = recipe.model.name
    if ":" not in model and model not in model_names() and not Path(model).is_dir():
        raise ValueError(
            f"no model {model!r}; there are {', '.join(model_names())}, or give your own as package.module:callable "
            "or a folder of Hugging Face"
        )
    declaration_of(recipe)


def load_data(recipe: Recipe, data_dir: Path | None, *, holdout_key: bytes = b"") -> DataSet:
    """The records of a recipe, without those that a secret random key holds out; without a key none are.

    Raises:
        DataError: the records are not as declared.
    """
    section = recipe.data
    data = data_sets.load(section.name, data_dir=data_dir, declaration=declaration_of(recipe))
    return data if section.holdout is None or not holdout_key else hold_out(data, section.holdout, holdout_key)


def declaration_of(recipe: Recipe) -> Declaration:
    """What a recipe declares about its records; a ``DataError`` where that contradicts itself."""
    section = recipe.data
    network = folder_of(recipe.model.backbone) if recipe.model.backbone else Path(recipe.model.name)
    return Declaration(
        classes=section.classes,
        size=section.size,
        label=section.label,
        test=Path(section.test) if section.test else None,
        users=section.users,
        columns=Columns.of(section.columns) if section.columns else None,
        target=None if section.target is None else Target(*section.target, section.unit),
        text=section.text,
        numbering=Numbering(section.tokens, section.words, network if (network / "config.json").is_file() else None),
        decimal=section.decimal,
        thousands=section.thousands,
        encoding=section.encoding,
        skip_unlabelled=section.skip_unlabelled,
        images=ImageForm(*section.image_size, section.grey) if section.image_size else None,
    )


def load_public(recipe: Recipe, data_dir: Path | None) -> DataSet | None:
    """The data set of the recipe's public examples, if it has any; a ``DataError`` if they cannot be read."""
    section = recipe.public
    if section.data is None:
        return None
    own = section.data not in data_sets.names()
    declaration = Declaration(classes=section.classes, size=section.examples if own else None)
    return data_sets.load(section.data, data_dir=data_dir, declaration=declaration)
