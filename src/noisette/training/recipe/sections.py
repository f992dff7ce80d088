"""The tables of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DataSection:
    """The records; all fields but the name declare what is public about files of the user's own."""

    name: str = "digits"
    classes: int | tuple[str, ...] | None = None
    size: int | None = None
    label: str = "label"
    test: str | None = None
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    users: str | None = None  # the CSV column of the user whom a record belongs to: the guarantee is then for users
    records_per_user: int | None = None  # the most records of one user that are used
    public_users: int | None = None  # the number of users, where it is public
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # see noisette.data.columns.Columns.of
    target: tuple[float, float] | None = None  # the bounds of the number in the label column, for regression
    unit: str = ""  # that of the target
    text: str | None = None  # the CSV column of a text, which is the only input
    tokens: int = 64  # how many words of a text are used
    words: int = 4096  # how many numbers words are hashed to; a folder of Hugging Face has a tokenizer instead
    decimal: str = "."  # what stands before the decimals of a number in a CSV: a point or a comma
    skip_unlabelled: bool = False  # whether rows of a CSV without a label are left out; otherwise they are refused
    image_size: tuple[int, int] | None = None  # width and height that images of a folder are scaled and cut to
    grey: bool = False  # whether these images become grey; otherwise all are in colour
    mean: tuple[float, ...] = ()  # known means of the channels, subtracted in front of the model; one is for all
    deviation: tuple[float, ...] = ()  # known deviations, by which they are divided; never computed from the records
    holdout: float | None = None  # the share of the records that is drawn at random to test with


@dataclass(frozen=True)
class ModelSection:
    """A model of ``noisette.models``, ``package.module:callable`` or a folder of Hugging Face, and first weights."""

    name: str = "cnn"  # in a recipe without it, the model suits the data, as for noisette train
    weights: str | None = None  # a safetensors file of weights that were trained on public records
    frozen: tuple[str, ...] = ("features",)  # modules that keep these weights
    batch_norm: str | None = None  # the name in BATCH_NORMS of what replaces each batch norm; all stay if left out
    weight_standardised: bool = False  # whether the trained convolutions have standardised weights
    standardised: bool = False  # whether fixed features get the mean 0 and deviation 1 of those of public examples
    whitened: int = 0  # how many principal components of public examples take the place of fixed features; 0 for none


@dataclass(frozen=True)
class PublicSection:
    """The public examples that give norms or features their statistics. They have no privacy guarantee."""

    data: str | None = None  # a built-in set, a folder of images or an .npz: other examples than those trained on
    examples: int = 128  # how many of its training examples are taken
    seed: int = 0  # which ones
    classes: int | tuple[str, ...] | None = None  # those of files of your own, which are read with their labels


@dataclass(frozen=True)
class PrivacySection:
    """The privacy budget of all that is learned from the records, and how the gradient of one example is clipped."""

    epsilon: float = 3.0
    delta: float = 1e-5
    noise_multiplier: float | None = None  # calibrated to the budget if left out; given, the budget limits the steps
    max_grad_norm: float = 1.0  # the clipping norm: of each layer with per-layer clipping, the first with adaptive
    clipping: str = "flat"  # a name in CLIPPING_RULES
    engine: str = "book-keeping"  # a name in ENGINES
    accountant: str = "pld"
    allow_large_delta: bool = False


@dataclass(frozen=True)
class LipschitzSection:
    """How the layers of a Lipschitz network bound the gradient of one example; if left out, clipping does."""

    tau: float | None = None  # the loss is that of the scores times tau, divided by tau; must be given
    logit_clip: float = 0.0  # bound on an example's gradient at the scores; 0 leaves that of the loss
    allocation: str = "optimal"  # a name in ALLOCATIONS: how the noise is shared among the parameters

    @property
    def used(self) -> bool:
        """Whether the layers bound the gradient of one example."""
        return self.tau is not None


@dataclass(frozen=True)
class ProjectionSection:
    """The private principal components that the records are projected on before training; none if left out."""

    components: int = 0
    noise_multiplier: float = 0.0


@dataclass(frozen=True)
class AugmentationSection:
    """The views of a record, an image, whose losses are averaged: they are one gradient and cost what one costs.

    A model whose first part is fixed takes fixed views, see :func:`noisette.nn.fixed_views`; another draws new ones in
    each step, see :class:`noisette.nn.MirrorAndShift`.
    """

    views: int = 1  # how many
    flip: bool = False  # whether some are mirrored, left to right
    shift: int = 0  # the most pixels by which they are shifted along each axis; of fixed views just that many
    test_flip: bool = False  # whether scores of the published model are averaged over the image and its mirror image

    @property
    def moves(self) -> bool:
        """Whether views differ from the record."""
        return self.flip or self.shift > 0


@dataclass(frozen=True)
class TrainingSection:
    """How the noised gradients are used. All of it is post-processing, except the number and size of the batches."""

    epochs: float = 40.0
    batch_size: int = 1024  # expected
    lr: float | None = 1.0  # without one, the rule of noisette.training.defaults gives that of SGD
    optimizer: str = "sgd"  # a name in OPTIMIZERS
    momentum: float = 0.0  # of SGD
    floor: float | None = (
        None  # of adam-bc: the least second moment, in units of the noise's variance; 0.01 if left out
    )
    cosine: bool = True  # the learning rate falls to zero along half a cosine; otherwise it is constant
    lr_end: float | None = None  # instead of the cosine: the learning rate changes linearly to this one and stays there
    lr_epochs: float = 10.0  # the number of epochs that this takes
    warmup: float = 0.0  # the share of the steps over which the learning rate rises from zero
    averaging: float = 0.0  # decay of the exponential average of the weights; 0 keeps the last weights
    average_last: float = 0.0  # instead: the share of the steps, the last ones, whose weights are averaged evenly
    seed: int = 0  # of the first weights only: noise and sampling never depend on it
    microbatch_size: int = 1024  # examples in memory at once, of which each view of a record is one
    compile: str = "auto"  # whether the step is compiled: "yes" waits for it, "auto" where the run repays it, or "no"
    batches: str = "poisson"  # a name in BATCHES: how they are drawn
    simulates: int = 1  # set by --simulate: how many times as large the run is that this one stands for
    largest_batch: int | None = None  # of truncated batches: the most examples of a batch
    bands: int | None = None  # of cyclic batches: the groups, and the steps over which noise is correlated
