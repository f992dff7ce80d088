"""The recipe of a run: a TOML file of short tables, read into frozen dataclasses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from noisette._internal import checks
from noisette.training.recipe import constraints
from noisette.training.recipe.reading import read_fields
from noisette.training.recipe.sections import (
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    ProjectionSection,
    PublicSection,
    TrainingSection,
)

# Settings that are known to work on the built-in data sets.
_IMAGES = TrainingSection(epochs=40, batch_size=4096, lr=4.0, momentum=0.9, averaging=0.98)
_FEW_IMAGES = TrainingSection(epochs=40, batch_size=1024, lr=4.0, momentum=0.9, averaging=0.98)
_FEATURES = PrivacySection(max_grad_norm=0.1)
_KNOWN_TO_WORK = {
    "digits": (PrivacySection(delta=1e-4), TrainingSection(batch_size=360, cosine=False, averaging=0.95), "cnn"),
    "mnist": (_FEATURES, _IMAGES, "scattering"),
    "fashion-mnist": (_FEATURES, _IMAGES, "scattering"),
    "cifar10": (_FEATURES, _IMAGES, "scattering"),
    "kmnist": (_FEATURES, _FEW_IMAGES, "scattering"),
    "emnist-letters": (_FEATURES, _FEW_IMAGES, "scattering"),
    "adult": (PrivacySection(), TrainingSection(epochs=20, batch_size=1024, lr=2.0), "mlp"),
    "ag-news": (PrivacySection(), TrainingSection(epochs=20, batch_size=1024, lr=2.0, momentum=0.9), "bilstm-dl"),
}


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

    def __post_init__(self) -> None:
        checks.all_of(
            lambda: constraints.check_projection(self.projection),
            lambda: constraints.check_model(self.model, self.projection),
            lambda: constraints.check_public(self.public, self.model, self.data),
            lambda: constraints.check_privacy(self.privacy),
            lambda: constraints.check_lipschitz(self.lipschitz, self.model, self.privacy),
            lambda: constraints.check_training(self.training),
            lambda: constraints.check_users(self.data, self.projection, self.training),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """The recipe in a TOML file; fields that it leaves out keep their defaults.

        Raises:
            ValueError: the file is not TOML, or has unknown keys or values of another type; all are listed.
        """
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not a TOML file: {error}") from error
        return cls.of(tables, str(path))

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

    @classmethod
    def default_for(cls, data: str) -> Self:
        """A recipe that is known to work for this data set; for another one, an MLP with the default settings."""
        known = _KNOWN_TO_WORK.get(data)
        if known is None:
            return cls(DataSection(name=data), ModelSection("mlp"))
        privacy, training, model = known
        return cls(DataSection(name=data), ModelSection(model), privacy=privacy, training=training)
