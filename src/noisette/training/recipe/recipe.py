"""A run as data: a TOML file of short tables, read into frozen dataclasses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from noisette._internal import checks
from noisette.training.recipe import constraints
from noisette.training.recipe.defaults import KNOWN_TO_WORK
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


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a run but the secret noise."""

    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    training: TrainingSection = field(default_factory=TrainingSection)
    projection: ProjectionSection = field(default_factory=ProjectionSection)
    public: PublicSection = field(default_factory=PublicSection)
    lipschitz: LipschitzSection = field(default_factory=LipschitzSection)

    def __post_init__(self) -> None:
        projection, privacy, training = self.projection, self.privacy, self.training
        epsilon, noise, lr_end = privacy.epsilon, privacy.noise_multiplier, training.lr_end
        checks.all_of(
            lambda: projection == ProjectionSection() or checks.count(components=projection.components),
            lambda: projection == ProjectionSection() or checks.positive(noise_multiplier=projection.noise_multiplier),
            lambda: constraints.check_start(self.model, projection),
            lambda: constraints.check_batch_norm(self.model.batch_norm),
            lambda: constraints.check_public(self.public, self.model, self.data),
            lambda: not self.model.couples or constraints.check_no_guarantee(privacy, projection),
            lambda: epsilon is None or checks.positive(epsilon=epsilon),
            lambda: checks.open_fraction(delta=privacy.delta),
            lambda: noise is None or checks.positive(noise_multiplier=noise),
            lambda: checks.positive(max_grad_norm=privacy.max_grad_norm),
            lambda: constraints.check_lipschitz(self.lipschitz, self.model, privacy),
            lambda: constraints.check_accountant(privacy.accountant),
            lambda: checks.positive(epochs=training.epochs),
            lambda: checks.count(batch_size=training.batch_size),
            lambda: checks.positive(lr=training.lr),
            lambda: lr_end is None or checks.positive(lr_end=lr_end),
            lambda: checks.positive(lr_epochs=training.lr_epochs),
            lambda: checks.below_one(momentum=training.momentum),
            lambda: checks.below_one(averaging=training.averaging),
            lambda: checks.count(microbatch_size=training.microbatch_size),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """The recipe in a TOML file; what it leaves out keeps its default.

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
        """The recipe in these tables, as :func:`dataclasses.asdict` makes them; what they leave out keeps its default.

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
        """A recipe that is known to work for this data set, or a middling one."""
        known = KNOWN_TO_WORK.get(data)
        if known is None:
            return cls(DataSection(name=data), ModelSection("mlp"))
        privacy, training, model = known
        return cls(DataSection(name=data), ModelSection(model), privacy=privacy, training=training)
