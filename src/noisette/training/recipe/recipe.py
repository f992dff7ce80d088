"""The recipe of a run: a TOML file of short tables, read into frozen dataclasses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from noisette import errors as checks
from noisette.training.recipe import constraints
from noisette.training.recipe.reading import read_fields
from noisette.training.recipe.sections import (
    AugmentationSection,
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    ProjectionSection,
    PublicSection,
    TrainingSection,
)
from noisette.training.recipe.suited import suited_model


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a run, except the secret noise."""

    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    training: TrainingSection = field(default_factory=TrainingSection)
    projection: ProjectionSection = field(default_factory=ProjectionSection)
    public: PublicSection = field(default_factory=PublicSection)
    lipschitz: LipschitzSection = field(default_factory=LipschitzSection)
    augmentation: AugmentationSection = field(default_factory=AugmentationSection)

    def __post_init__(self) -> None:
        checks.all_of(
            lambda: constraints.check_projection(self.projection),
            lambda: constraints.check_model(self.model, self.projection),
            lambda: constraints.check_public(self.public, self.model, self.data),
            lambda: constraints.check_privacy(self.privacy),
            lambda: constraints.check_lipschitz(self.lipschitz, self.model, self.privacy),
            lambda: constraints.check_training(self.training),
            lambda: constraints.check_augmentation(self.augmentation, self.lipschitz),
            lambda: constraints.check_data(self.data, self.lipschitz, self.training, self.projection),
            lambda: constraints.check_users(self.data, self.projection, self.training),
        )

    @classmethod
    def read(cls, path: Path, data: Mapping[str, Any] | None = None) -> Self:
        """The recipe in a TOML file; fields that it leaves out keep their defaults, and a model suits the data.

        Args:
            path: of the file.
            data: fields that take the place of those of its table ``data``.

        Raises:
            ValueError: the file is not TOML, or has unknown keys or values of another type; all are listed.
        """
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from error
        if data and isinstance(tables.get("data", {}), dict):
            tables["data"] = tables.get("data", {}) | data
        recipe = cls.of(tables, str(path))
        if "name" in tables.get("model", {}):
            return recipe
        return replace(recipe, model=replace(recipe.model, name=suited_model(recipe.data)))

    @classmethod
    def of(cls, tables: Mapping[str, Any], source: str) -> Self:
        """The recipe in these tables, as :func:`dataclasses.asdict` makes them; missing fields keep their defaults.

        Raises:
            ValueError: there are unknown keys or values of another type; all are listed, and ``source`` is named.
        """
        problems: list[str] = []
        sections = read_fields(cls, tables, "", problems)
        if problems:
            raise ValueError(f"{source} has {len(problems)} problems:\n  " + "\n  ".join(problems))
        return cls(**sections)

    @staticmethod
    def default_for(data: str) -> Recipe:
        """A recipe that is known to work for this data set; see :func:`default_recipe`."""
        from noisette.training.recipe.defaults import default_recipe

        return default_recipe({"name": data})
