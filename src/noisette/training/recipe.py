"""The names that a recipe can choose from, each table in one place. Reading the tables does not import torch."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from noisette import errors as checks
from noisette.accounting.registry import ACCOUNTANTS, Entry
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.data.columns import Columns
from noisette.training.defaults import batches_for, delta_for


@dataclass(frozen=True)
class BatchNormEntry(Entry):
    """A norm that replaces batch norm; ``needs_public`` if its statistics come from public examples."""

    needs_public: bool = False


def _norms():
    from noisette import nn

    return nn


def _conversion():
    from noisette.nn import conversion  # has the norms of torch, which is not imported here

    return conversion


def _schemes():
    from noisette.run import sampling as schemes

    return schemes


def _optimizers():
    from noisette.training import optimizers

    return optimizers


def _allocations():
    from noisette.lipschitz import bound

    return bound


BATCH_NORMS: Mapping[str, BatchNormEntry] = {
    "public": BatchNormEntry(lambda: _norms().PublicBatchNorm, "statistics of public examples", needs_public=True),
    "per-example": BatchNormEntry(
        lambda: _norms().PerExampleBatchNorm, "statistics of one example and the public ones, in closed form", True
    ),
    "per-example-exact": BatchNormEntry(
        lambda: _norms().ExactPerExampleBatchNorm, "the same from a forward pass for each example (slow)", True
    ),
    "frozen": BatchNormEntry(lambda: _norms().FrozenBatchNorm, "fixed statistics of public data", True),
    "group": BatchNormEntry(lambda: _conversion().nn.GroupNorm, "group norm"),
    "layer": BatchNormEntry(lambda: _conversion().nn.LayerNorm, "layer norm"),
    "instance": BatchNormEntry(lambda: _conversion()._InstanceNorm, "instance norm"),
}
NEED_PUBLIC = tuple(name for name, norm in BATCH_NORMS.items() if norm.needs_public)

BATCHES: Mapping[str, Entry] = {
    "poisson": Entry(lambda: _schemes().Poisson, "each example by itself, at the lowest cost"),
    "truncated": Entry(lambda: _schemes().TruncatedPoisson, "the same, but at most --largest-batch examples"),
    "balls-in-bins": Entry(lambda: _schemes().BallsInBins, "each example once in a pass"),
    "cyclic": Entry(
        lambda: _schemes().CyclicPoisson, "of --bands groups in turn, and noise that later steps take back"
    ),
}

# Whether a step is captured and compiled, with the value of ``capture`` that it stands for.
COMPILE: Mapping[str, Literal["auto", "compiled", "eager"]] = {"auto": "auto", "yes": "compiled", "no": "eager"}

OPTIMIZERS: Mapping[str, Entry] = {
    "sgd": Entry(lambda: _optimizers().sgd, "stochastic gradient descent, with momentum"),
    "adam": Entry(lambda: _optimizers().adam, "steps scaled by running means of the noised gradients"),
    "adam-bc": Entry(lambda: _optimizers().adam_bc, "the same without the variance of the noise in them"),
}

ALLOCATIONS: Mapping[str, Entry] = {
    "global": Entry(lambda: _allocations().GlobalAllocation, "the same noise on every parameter"),
    "per-layer": Entry(lambda: _allocations().PerLayerAllocation, "an equal share for each layer"),
    "optimal": Entry(lambda: _allocations().OptimalAllocation, "the least noise in total"),
}


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
    """A model of ``noisette.nn.models``, ``package.module:callable`` or a folder of Hugging Face, and first weights."""

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


def read_fields(owner: type, table: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    """Keyword arguments for a dataclass from a table, opening nested dataclasses; problems are collected."""
    known = {f.name: f for f in fields(owner)}
    types = get_type_hints(owner)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
            problems.append(f"unknown key {where}{key}: {hint}")
        elif is_dataclass(types[key]):
            if isinstance(value, dict):
                values[key] = types[key](**read_fields(types[key], value, f"{where}{key}.", problems))
            else:
                problems.append(f"{where}{key} is a table: write [{key}]")
        else:
            values[key] = _typed(value, types[key], known[key], f"{where}{key}", problems)
    return values


def _typed(value: Any, expected: Any, known: Field[Any], where: str, problems: list[str]) -> Any:
    """The value of a field, with lists as tuples, and whole numbers as floats where the type is float.

    A value of another type is added to the problems and returned as it is.
    """
    if isinstance(value, list):
        value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
    if isinstance(value, dict):
        value = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    if type(value) is int and float in (expected, *_choices(expected)):
        return float(value)
    if not _fits(value, expected):
        default = "" if known.default is MISSING else f", like {known.default!r}"
        problems.append(f"{where} = {value!r} is not of the expected type{default}")
    return value


def _fits(value: Any, kind: Any) -> bool:
    """Whether a plain value, with all that it holds, is of a type; whole numbers pass for floats, and bools do not."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin is tuple:
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis and isinstance(value, tuple) else parts
        return isinstance(value, tuple) and len(value) == len(kinds) and all(map(_fits, value, kinds))
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(item, parts[1]) for item in value.values())
    if choices := _choices(kind):
        return any(_fits(value, choice) for choice in choices)
    return type(value) is kind or (type(value) is int and kind is float)


def _choices(kind: Any) -> tuple[Any, ...]:
    """The types of which a union is; none if it is not one."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else ()


_OF_A_RUN = ("name", "test")  # places of files, which belong to a run


def read_schema(path: Path) -> dict[str, Any]:
    """The fields of :class:`DataSection` that a schema gives.

    Raises:
        ValueError: the file is not TOML, or has unknown keys or values of another type; all are listed.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from error
    problems = [
        f"{key} is given on the command line or in a recipe; leave it out" for key in _OF_A_RUN if key in tables
    ]
    fields = read_fields(DataSection, tables, "", problems)
    if problems:
        raise ValueError(f"{path} has {len(problems)} problems:\n  " + "\n  ".join(problems))
    return fields


_BUILT_IN = {
    "digits": "cnn",
    **dict.fromkeys(("mnist", "fashion-mnist", "cifar10", "kmnist", "emnist-letters"), "scattering"),
    "adult": "mlp",
    **dict.fromkeys(("sst2", "imdb", "ag-news-words"), "ranked-word-counts"),
    **dict.fromkeys(("ag-news", "sst2-glove", "imdb-glove"), "encoder"),
}


def suited_model(data: DataSection) -> str:
    """The name of a model for a built-in data set, or for tables, texts and images of one's own.

    >>> suited_model(DataSection("adult")), suited_model(DataSection("own.csv", text="review"))
    ('mlp', 'ranked-word-counts')
    """
    if built_in := _BUILT_IN.get(data.name):
        return built_in
    return "ranked-word-counts" if data.text is not None else "cnn" if Path(data.name).is_dir() else "mlp"


_LARGEST_RATE = 1_000_000


def accountant_names() -> list[str]:
    """The accountants that a recipe can name."""
    return [name for name, accountant in ACCOUNTANTS.items() if accountant.in_recipes]


def check_choice(field: str, name: str, names: Collection[str]) -> None:
    """The table of this field has the name."""
    if name not in names:
        raise ValueError(f"expected {field} to be one of {', '.join(names)}, got {name!r}")


def check_model(model: ModelSection, projection: ProjectionSection) -> None:
    """There is such a norm, and public weights are not combined with a projection."""
    if model.batch_norm is not None:
        check_choice("batch_norm", model.batch_norm, BATCH_NORMS)
    if model.weight_standardised and model.weights is not None and model.frozen:
        raise ValueError(
            "weights are standardised where all are trained, and the frozen ones are not; give frozen = [], or leave "
            "out weight_standardised"
        )
    if model.whitened:
        checks.count(whitened=model.whitened)
    if model.whitened and model.standardised:
        raise ValueError("whitened features have mean 0 already; leave out standardised, or whitened")
    if model.weights is not None and projection.components:
        raise ValueError(
            "public weights were trained on the data itself, not on its projection; leave out one of the two"
        )


def check_projection(projection: ProjectionSection) -> None:
    """Components and noise are both given, or neither."""
    if projection != ProjectionSection():
        checks.all_of(
            lambda: checks.count(components=projection.components),
            lambda: checks.positive(noise_multiplier=projection.noise_multiplier),
        )


def check_privacy(privacy: PrivacySection) -> None:
    """Every number is inside its domain, and every name in its table."""
    noise = privacy.noise_multiplier
    checks.all_of(
        lambda: checks.positive(epsilon=privacy.epsilon),
        lambda: checks.open_fraction(delta=privacy.delta),
        lambda: noise is None or checks.positive(noise_multiplier=noise),
        lambda: checks.positive(max_grad_norm=privacy.max_grad_norm),
        lambda: check_choice("clipping", privacy.clipping, CLIPPING_RULES),
        lambda: check_choice("engine", privacy.engine, ENGINES),
        lambda: check_choice("accountant", privacy.accountant, accountant_names()),
    )


def check_training(training: TrainingSection) -> None:
    """Every number is inside its domain."""
    checks.all_of(
        lambda: checks.positive(epochs=training.epochs),
        lambda: checks.count(batch_size=training.batch_size),
        lambda: _check_seed(training.seed),
        lambda: _check_has_rate(training),
        lambda: _check_rate("lr", training.lr),
        lambda: _check_rate("lr_end", training.lr_end),
        lambda: checks.positive(lr_epochs=training.lr_epochs),
        lambda: checks.below_one(momentum=training.momentum),
        lambda: checks.below_one(warmup=training.warmup),
        lambda: _check_averages(training),
        lambda: checks.count(microbatch_size=training.microbatch_size),
        lambda: checks.count(simulates=training.simulates),
        lambda: check_choice("compile", training.compile, COMPILE),
        lambda: _check_batches(training),
        lambda: _check_optimizer(training),
    )


def _check_has_rate(training: TrainingSection) -> None:
    if training.lr is None and training.optimizer != "sgd":
        raise ValueError(f'the rule for learning rates is for SGD; with optimizer = "{training.optimizer}" give lr')


def _check_rate(name: str, rate: float | None) -> None:
    if rate is None:
        return
    checks.positive(**{name: rate})
    if rate > _LARGEST_RATE:
        raise ValueError(f"expected {name} of at most {_LARGEST_RATE}, got {rate}: the weights would overflow")


def _check_seed(seed: int) -> None:
    if not -(2**63) <= seed < 2**63:
        raise ValueError(f"expected a seed of at most 63 bits, got {seed}")


def _check_averages(training: TrainingSection) -> None:
    checks.below_one(averaging=training.averaging, average_last=training.average_last)
    if training.averaging and training.average_last:
        raise ValueError("averaging and average_last are two averages of the weights; give one of them")


def check_augmentation(augmentation: AugmentationSection, lipschitz: LipschitzSection) -> None:
    """Several views differ, and the gradient of one example is clipped."""
    checks.all_of(
        lambda: checks.count(views=augmentation.views),
        lambda: augmentation.shift == 0 or checks.count(shift=augmentation.shift),
        lambda: _check_views(augmentation, lipschitz),
    )


def _check_views(augmentation: AugmentationSection, lipschitz: LipschitzSection) -> None:
    if augmentation.views > 1 and not augmentation.moves:
        raise ValueError("views of a record are mirrored or shifted; give flip = true or shift to the augmentation")
    if lipschitz.used and augmentation != AugmentationSection():
        raise ValueError(
            "layers that bound the gradient take each record as it is; leave out augmentation or lipschitz"
        )


def _check_optimizer(training: TrainingSection) -> None:
    check_choice("optimizer", training.optimizer, OPTIMIZERS)
    if training.optimizer != "sgd" and training.momentum:
        raise ValueError(f'momentum is that of SGD; with optimizer = "{training.optimizer}" leave it out')
    if training.floor is not None:
        checks.positive(floor=training.floor)
        if training.optimizer != "adam-bc":
            raise ValueError(f'floor is that of adam-bc; with optimizer = "{training.optimizer}" leave it out')


def check_data(
    data: DataSection, lipschitz: LipschitzSection, training: TrainingSection, projection: ProjectionSection
) -> None:
    """Test examples come from one place, and a number is predicted with clipping."""
    checks.all_of(
        lambda: data.holdout is None or checks.open_fraction(holdout=data.holdout),
        lambda: checks.count(tokens=data.tokens),
        lambda: checks.count(words=data.words),
        lambda: _check_test(data, training),
        lambda: Columns.of(data.columns),
        lambda: _check_target(data, lipschitz),
        lambda: _check_constants(data, projection),
        lambda: _check_image_size(data),
    )


def _check_image_size(data: DataSection) -> None:
    if data.image_size is None:
        if data.grey:
            raise ValueError("grey is the colour of images that are brought to a size; give image_size")
    elif len(data.image_size) != 2:
        raise ValueError(f"expected image_size as width and height, got {data.image_size}")
    else:
        checks.count(width=data.image_size[0])
        checks.count(height=data.image_size[1])


def _check_constants(data: DataSection, projection: ProjectionSection) -> None:
    if bool(data.mean) != bool(data.deviation):
        raise ValueError("inputs are standardised by a mean and a deviation; give both, or neither")
    for value in data.deviation:
        checks.positive(deviation=value)
    if data.mean and projection.components:
        raise ValueError("principal components are those of the records as they are; leave out mean and deviation")


def _check_test(data: DataSection, training: TrainingSection) -> None:
    if data.holdout is not None and (training.batches == "truncated" or data.public_users is not None):
        raise ValueError(
            "truncated batches and public_users need a number of records or users that is public, and how many are "
            "held out is random; leave holdout out, or these"
        )
    if data.holdout is not None and data.test is not None:
        raise ValueError("test examples come from a second file or are held out; give test or holdout, not both")


def _check_target(data: DataSection, lipschitz: LipschitzSection) -> None:
    if data.target is None:
        if data.unit:
            raise ValueError("unit is that of a number to predict; give its bounds as target")
        return
    if len(data.target) != 2:
        raise ValueError(f"expected target as two numbers, the lowest and the highest, got {data.target}")
    if data.classes is not None:
        raise ValueError("classes are for labels and target is for a number; give one of them")
    if lipschitz.used:
        raise ValueError("the loss of a table lipschitz is for classes; leave the table out, or target")


def _check_batches(training: TrainingSection) -> None:
    check_choice("batches", training.batches, BATCHES)
    if (training.batches == "truncated") != (training.largest_batch is not None):
        raise ValueError('batches = "truncated" needs largest_batch, and no other batches have one')
    if (training.batches == "cyclic") != (training.bands is not None):
        raise ValueError('batches = "cyclic" needs bands, and no other batches have them')
    if training.largest_batch is not None:
        checks.count(largest_batch=training.largest_batch)
    if training.bands is not None:
        checks.count(bands=training.bands)


def check_users(data: DataSection, projection: ProjectionSection, training: TrainingSection) -> None:
    """A guarantee for users has the most records of one user, and nothing that was released for records alone."""
    if data.users is None:
        if data.records_per_user is not None or data.public_users is not None:
            raise ValueError("records_per_user and public_users are for a guarantee for users; give the column users")
        return
    if data.records_per_user is None:
        raise ValueError(f"users = {data.users!r} needs records_per_user: the most records of one user that are used")
    checks.count(records_per_user=data.records_per_user)
    if data.public_users is not None:
        checks.count(public_users=data.public_users)
    if projection.components:
        raise ValueError("private principal components have a guarantee for records; leave them out, or users")
    if training.batches != "poisson":
        raise ValueError(f'with users batches are Poisson; leave batches = "{training.batches}" out')


def check_public(public: PublicSection, model: ModelSection, data: DataSection) -> None:
    """Public examples are given where something needs them and nowhere else, and are not those trained on."""
    of_features = model.standardised or model.whitened > 0
    if model.batch_norm not in NEED_PUBLIC and not of_features:
        if public != PublicSection() and model.batch_norm in (None, *BATCH_NORMS):
            raise ValueError(
                f"public examples are for batch_norm {', '.join(NEED_PUBLIC)}, or for standardised or "
                f"whitened features, not "
                f"{model.batch_norm}; leave them out"
            )
        return
    if public.data is None:
        if model.batch_norm == "frozen" and model.weights is not None and not of_features:
            return  # the file of the weights holds the statistics
        needs = (
            "standardised = true"
            if model.standardised
            else f"whitened = {model.whitened}"
            if model.whitened
            else f'batch_norm = "{model.batch_norm}"'
        )
        raise ValueError(
            f'{needs} takes its statistics from public examples; name their set, such as [public] data = "kmnist"'
        )
    if Path(public.data).resolve() == Path(data.name).resolve():
        raise ValueError(
            f"public data {public.data!r} is the set that is trained on, whose examples are private; name another"
        )
    if public.examples < 2:
        raise ValueError(f"expected examples >= 2, got examples={public.examples}: fewer have no variance")
    if public.seed < 0:
        raise ValueError(f"expected seed >= 0, got seed={public.seed}")


def check_lipschitz(lipschitz: LipschitzSection, model: ModelSection, privacy: PrivacySection) -> None:
    """The gradient of one example is bounded in one way: by the layers, or by clipping."""
    if lipschitz.tau is None:
        if lipschitz != LipschitzSection():
            raise ValueError("give lipschitz.tau, by which the loss is scaled, or leave out the table lipschitz")
        return
    checks.all_of(
        lambda: checks.positive(tau=lipschitz.tau),
        lambda: lipschitz.logit_clip == 0 or checks.positive(logit_clip=lipschitz.logit_clip),
        lambda: check_choice("allocation", lipschitz.allocation, ALLOCATIONS),
        lambda: _check_no_clipping(privacy),
        lambda: _check_no_norm(model),
    )


def _check_no_clipping(privacy: PrivacySection) -> None:
    plain, names = PrivacySection(), ("max_grad_norm", "clipping", "engine")
    if given := [name for name in names if getattr(privacy, name) != getattr(plain, name)]:
        raise ValueError(
            "with a table lipschitz the layers bound the gradient and nothing is clipped; leave out " + ", ".join(given)
        )


def _check_no_norm(model: ModelSection) -> None:
    if model.batch_norm is not None:
        raise ValueError(
            f"batch_norm = {model.batch_norm!r} has no Lipschitz bound; leave it out, or the table lipschitz"
        )
    if model.weight_standardised:
        raise ValueError("standardised weights have no Lipschitz bound; leave weight_standardised out, or lipschitz")


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
            lambda: check_projection(self.projection),
            lambda: check_model(self.model, self.projection),
            lambda: check_public(self.public, self.model, self.data),
            lambda: check_privacy(self.privacy),
            lambda: check_lipschitz(self.lipschitz, self.model, self.privacy),
            lambda: check_training(self.training),
            lambda: check_augmentation(self.augmentation, self.lipschitz),
            lambda: check_data(self.data, self.lipschitz, self.training, self.projection),
            lambda: check_users(self.data, self.projection, self.training),
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

        return default_recipe({"name": data})


_ADAM_RATE = 0.003
_COUNTS = TrainingSection(epochs=15, lr=10.0, momentum=0.9, cosine=False, average_last=0.5)  # of linear layers
_COUNTS_NORM = 0.7
_OF_COUNTS = ("word-counts", "ranked-word-counts", "word-counts-and-vectors")
_TEXT_SIZES = {"sst2": 67_349, "imdb": 25_000, "ag-news-words": 18_349}
_TEXTS = TrainingSection(epochs=10, batch_size=1024, lr=0.01, optimizer="adam")
_VECTORS = TrainingSection(epochs=20, batch_size=1024, lr=2.0, momentum=0.9)
_ENCODER = TrainingSection(epochs=15, batch_size=2500, lr=1.0, momentum=0.9, averaging=0.9)
_PRETRAINED = TrainingSection(epochs=5, batch_size=1024, lr=0.0005, optimizer="adam", microbatch_size=64)
# Settings that are known to work on the built-in data sets.
_IMAGES = TrainingSection(epochs=40, batch_size=4096, lr=4.0, momentum=0.9, averaging=0.98)
_FEW_IMAGES = TrainingSection(epochs=40, batch_size=1024, lr=4.0, momentum=0.9, averaging=0.98)
_FEATURES = PrivacySection(max_grad_norm=0.1)
_KNOWN_TO_WORK = {
    "digits": (PrivacySection(delta=1e-4), TrainingSection(batch_size=360, cosine=False, averaging=0.95)),
    "mnist": (_FEATURES, _IMAGES),
    "fashion-mnist": (_FEATURES, _IMAGES),
    "cifar10": (_FEATURES, _IMAGES),
    "kmnist": (_FEATURES, _FEW_IMAGES),
    "emnist-letters": (_FEATURES, _FEW_IMAGES),
    "adult": (PrivacySection(), TrainingSection(epochs=20, batch_size=1024, lr=2.0)),
    "ag-news": (PrivacySection(), _VECTORS),
    "sst2-glove": (PrivacySection(), _VECTORS),
    "imdb-glove": (PrivacySection(), _ENCODER),
}


def default_recipe(data: Mapping[str, Any], model: str | None = None, optimizer: str | None = None) -> Recipe:
    """A recipe that is known to work for a built-in data set; for another one, what suits its kind and declared size.

    Args:
        data: fields of the recipe's table ``data``.
        model: the name of the model, if it is chosen.
        optimizer: the name of the optimizer, if it is chosen.

    >>> default_recipe({"name": "own.csv", "size": 700}).training.batch_size
    210
    """
    section = DataSection(**data)
    name = model or suited_model(section)
    if known := _KNOWN_TO_WORK.get(section.name):
        privacy, training = known
    elif section.name in _TEXT_SIZES:
        privacy, training = _of_texts(PrivacySection(), _TEXT_SIZES[section.name], name)
    else:
        privacy, training = _of_own_data(section, name)
    if model is not None and Path(model).is_dir():
        training = replace(_PRETRAINED, batch_size=training.batch_size)
    if optimizer in ("adam", "adam-bc") and optimizer != training.optimizer:
        training = replace(training, optimizer=optimizer, lr=_ADAM_RATE, momentum=0.0)
    elif optimizer == "sgd" != training.optimizer:
        training = replace(training, optimizer=optimizer, lr=TrainingSection().lr)
    return Recipe(section, ModelSection(name), privacy=privacy, training=training)


def _of_own_data(data: DataSection, model: str) -> tuple[PrivacySection, TrainingSection]:
    """Delta, batches, epochs and learning rate by the declared size, as :mod:`noisette.training.defaults` has them."""
    if data.size is None or data.size < 1:
        return PrivacySection(), TrainingSection(lr=None) if data.text is None else _TEXTS
    records = max(1, round(data.size * (1 - (data.holdout or 0.0))))
    delta = PrivacySection(delta=delta_for(records))
    if data.text is not None:
        return _of_texts(delta, records, model)
    batches = batches_for(records)
    return delta, TrainingSection(lr=None, batch_size=batches.expected_batch_size, epochs=batches.epochs)


def _of_texts(privacy: PrivacySection, records: int, model: str) -> tuple[PrivacySection, TrainingSection]:
    """60 steps of a quarter of the texts for their counts; other models cost more, and take smaller batches."""
    if model in _OF_COUNTS:
        return replace(privacy, max_grad_norm=_COUNTS_NORM), replace(_COUNTS, batch_size=math.ceil(records / 4))
    return privacy, replace(_TEXTS, batch_size=min(_TEXTS.batch_size, math.ceil(records / 10)))
