"""How a network of the study is trained."""

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
    """A network and how it is trained, at a budget priced by the privacy loss distribution.

    ``size`` is the declared number of examples. ``clip`` bounds an example's gradient: at the scores, by a loss that is
    scaled by ``tau``, or the whole of it where there is no ``tau``. ``public`` names the set whose examples standardise
    fixed features. The learning rate falls to zero along a ``cosine``, or stays. The finished network is measured by
    accuracy, or, for anomalies, by the area under its ROC curve; and by its certified accuracy at each of ``radii``,
    Euclidean distances in the units of the inputs.
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
        """Whether the area under the ROC curve is measured."""
        return self.data.startswith("adbench-")

    def recipe(self, seed: int) -> Recipe:
        """The run as a recipe."""
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
