"""The tables of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class DataSection:
    """What is trained on; all but the name is declared by the user for files of their own."""

    name: str = "digits"
    classes: int | tuple[str, ...] | None = None
    size: int | None = None
    label: str = "label"
    test: str | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelSection:
    """A model of ``noisette.models`` or ``package.module:callable``, and what it begins with."""

    name: str = "cnn"
    weights: str | None = None  # a safetensors file of weights that were learnt from public records
    frozen: tuple[str, ...] = ("features",)  # parts with such weights that are not trained
    batch_norm: str | None = None  # one of BATCH_NORMS that takes the place of each batch norm; all stay if left out
    standardised: bool = False  # fixed features less the mean, over the deviation, of those of public examples

    @property
    def couples(self) -> bool:
        """Whether one example's statistics depend on the others, so that nothing can be promised to any."""
        return self.batch_norm == "mixture"


@dataclass(frozen=True)
class PublicSection:
    """The public examples that statistics of norms or of features come from; nothing is promised to them."""

    data: str | None = None  # a built-in set, a folder of images or an .npz: other examples than those trained on
    examples: int = 128  # so many of its training examples
    seed: int = 0  # which ones
    classes: int | tuple[str, ...] | None = None  # those of files of your own, which are read with their labels


@dataclass(frozen=True)
class PrivacySection:
    """The budget of all that is learned from the records, and the bound on one example."""

    epsilon: float | None = None  # 3 if left out, where there is a claim
    delta: float = 1e-5
    noise_multiplier: float | None = (
        None  # calibrated to the budget if left out; given, it ends the run with the budget
    )
    max_grad_norm: float = 1.0
    per_layer: bool = False  # bound and noise multiplier are those of each layer, not of all together
    accountant: str = "pld"
    allow_large_delta: bool = False

    @property
    def budget(self) -> float:
        """The epsilon that a run with a claim may spend."""
        return 3.0 if self.epsilon is None else self.epsilon


@dataclass(frozen=True)
class LipschitzSection:
    """How a Lipschitz network bounds one example: by its layers, its gradient unclipped; by clipping if left out."""

    tau: float | None = None  # scores are multiplied by it in the loss, which is divided by it; must be given
    logit_clip: float = 0.0  # bound on an example's gradient at the scores; 0 leaves that of the loss
    allocation: str = "optimal"  # one of ALLOCATIONS: how noise is shared among the weights

    @property
    def used(self) -> bool:
        """Whether the layers bound one example."""
        return self.tau is not None


@dataclass(frozen=True)
class ProjectionSection:
    """Private principal components that the records are projected on before training; none if left out."""

    components: int = 0
    noise_multiplier: float = 0.0


@dataclass(frozen=True)
class TrainingSection:
    """How the noised gradients are used. Everything here is post-processing."""

    epochs: float = 40.0
    batch_size: int = 1024  # expected
    lr: float = 1.0
    momentum: float = 0.0
    cosine: bool = True  # the learning rate falls to zero along half a cosine; constant otherwise
    lr_end: float | None = None  # instead: the learning rate moves in a line to this one, and stays there
    lr_epochs: float = 10.0  # for so many epochs
    averaging: float = 0.0  # decay of the exponential average of the weights; 0 keeps the last weights
    seed: int = 0  # initial weights only: noise and sampling never depend on it
    microbatch_size: int = 1024  # examples at once in memory
