"""The training settings of a network."""

from __future__ import annotations

from dataclasses import dataclass

from noisette.training.recipe import (
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    PublicSection,
    Recipe,
    TrainingSection,
)

_MICROBATCH = 8192  # examples at once in memory


@dataclass(frozen=True)
class Setting:
    """A network and its training settings, at a budget by the privacy loss distribution.

    ``size`` is the declared number of examples. ``clip`` is the clipping norm of an example's gradient: of the gradient
    at the scores, for a loss scaled by ``tau``, or of the whole gradient without ``tau``. ``public`` names the data set
    whose examples standardise fixed features. The learning rate decreases to zero along a ``cosine``, or is constant.
    The finished network is measured by its accuracy or, for anomalies, by the area under its ROC curve; and by its
    certified accuracy at each of ``radii``, Euclidean distances in units of the inputs.
    """

    data: str
    size: int
    model: str
    epsilon: float
    delta: float
    lot: int
    epochs: float
    lr: float
    tau: float | None
    clip: float
    averaging: float
    momentum: float = 0.9
    public: str | None = None
    public_examples: int = 5000
    cosine: bool = False
    radii: tuple[float, ...] = ()

    @property
    def anomalies(self) -> bool:
        """Whether the result is the area under the ROC curve."""
        return self.data.startswith("adbench-")

    def recipe(self, seed: int) -> Recipe:
        """Return the recipe of the run."""
        clipping, lipschitz = PrivacySection(max_grad_norm=self.clip), LipschitzSection()
        if self.tau is not None:
            clipping, lipschitz = PrivacySection(), LipschitzSection(self.tau, self.clip)
        return Recipe(
            data=DataSection(self.data),
            model=ModelSection(self.model, standardised=self.public is not None),
            public=PublicSection(self.public, self.public_examples) if self.public else PublicSection(),
            privacy=PrivacySection(epsilon=self.epsilon, delta=self.delta, max_grad_norm=clipping.max_grad_norm),
            lipschitz=lipschitz,
            training=TrainingSection(
                epochs=self.epochs,
                batch_size=self.lot,
                lr=self.lr,
                momentum=self.momentum,
                cosine=self.cosine,
                averaging=self.averaging,
                seed=seed,
                microbatch_size=_MICROBATCH,
            ),
        )
