"""Recipes: everything that determines a run, in tables of TOML, and the records that they name. Without torch."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_type_hints

import pydantic

from noisette import data as data_sets
from noisette import errors as checks
from noisette.accounting.registry import ACCOUNTANTS, Entry
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.data.columns import Columns, Declaration, DeclarationError, ImageForm, declared, unknown_key
from noisette.data.dataset import DataSet, Target, hold_out, refuse
from noisette.data.tables import SUFFIXES, check_columns
from noisette.data.words import Numbering
from noisette.nn.models.backbones import folder_of
from noisette.training.defaults import LARGER_TABLE_NORM, MANY_RECORDS, TABLE, TABLE_NORM, batches_for, delta_for

# What replaces batch norm.
BATCH_NORMS: Mapping[str, Entry] = {
    "public": Entry("noisette.nn:PublicBatchNorm", "statistics of public examples"),
    "per-example": Entry("noisette.nn:PerExampleBatchNorm", "statistics of an example and public ones in closed form"),
    "frozen": Entry("noisette.nn:FrozenBatchNorm", "fixed statistics of public data"),
    "group": Entry("torch.nn:GroupNorm", "group norm"),
}
NEED_PUBLIC = tuple(name for name in BATCH_NORMS if name != "group")

BATCHES: Mapping[str, Entry] = {
    "poisson": Entry("noisette:Poisson", "each example by itself, at the lowest cost"),
    "truncated": Entry("noisette:TruncatedPoisson", "the same, but at most --largest-batch examples"),
    "balls-in-bins": Entry("noisette:BallsInBins", "each example once in a pass"),
    "cyclic": Entry("noisette:CyclicPoisson", "of --bands groups in turn, and noise that later steps take back"),
}

# Whether a step is captured and compiled, with the value of ``capture`` that it stands for.
COMPILE: Mapping[str, Literal["auto", "compiled", "eager"]] = {"auto": "auto", "yes": "compiled", "no": "eager"}

OPTIMIZERS: Mapping[str, Entry] = {
    "sgd": Entry("torch.optim:SGD", "stochastic gradient descent, with momentum"),
    "adam": Entry("torch.optim:Adam", "steps scaled by running means of the noised gradients"),
}


def accountant_names() -> list[str]:
    """The accountants that a recipe can name: those of sampled batches."""
    return [name for name, accountant in ACCOUNTANTS.items() if accountant.supports_sampling]


def _checked(check: Callable[[str, Any], object]) -> pydantic.AfterValidator:
    """A check of the name of a field and its value."""

    def checked(value: Any, about: pydantic.ValidationInfo) -> Any:
        check(str(about.field_name), value)
        return value

    return pydantic.AfterValidator(checked)


def _named(check: Callable[..., object]) -> pydantic.AfterValidator:
    return _checked(lambda name, value: check(**{name: value}))


def _one_of(table: Mapping[str, Any]) -> pydantic.AfterValidator:
    def check(field: str, name: str) -> None:
        known = accountant_names() if table is ACCOUNTANTS else table
        if name not in known:
            raise ValueError(f"expected {field} to be one of {', '.join(known)}, got {name!r}")

    return _checked(check)


_Count = Annotated[int, _named(checks.count)]
_Whole = Annotated[int, _named(checks.whole)]
_Positive = Annotated[float, _named(checks.positive)]
_Rate = Annotated[float, _named(checks.positive), pydantic.Field(le=1_000_000)]  # above it weights would overflow
_Seed = Annotated[int, pydantic.Field(ge=-(2**63), lt=2**63)]
_Fraction = Annotated[float, _named(checks.open_fraction)]
_BelowOne = Annotated[float, _named(checks.below_one)]
_LIST = pydantic.Strict(False)  # a list of TOML or JSON becomes a tuple
_Texts = Annotated[tuple[str, ...], _LIST]
_Bounds = Annotated[tuple[float, float], _LIST]
_Size = Annotated[tuple[pydantic.PositiveInt, pydantic.PositiveInt], _LIST]


@declared
class DataSection:
    """The records; all fields but the name declare what is public about files of the user's own."""

    name: str = "digits"
    classes: int | _Texts | None = None
    size: int | None = None
    label: str = "label"
    test: str | None = None
    users: str | None = None  # the CSV column of the user whom a record belongs to: the guarantee is then for users
    records_per_user: _Count | None = None  # the most records of one user that are used
    public_users: _Count | None = None  # the number of users, where it is public
    columns: Annotated[Mapping[str, Mapping[str, Any]], _checked(lambda _, columns: Columns.of(columns))] = field(
        default_factory=dict
    )
    target: _Bounds | None = None  # the bounds of the number in the label column, for regression
    unit: str = ""  # that of the target
    text: str | None = None  # the CSV column of a text, which is the only input
    tokens: _Count = 64  # how many words of a text are used
    words: _Count = 4096  # how many numbers words are hashed to; a folder of Hugging Face has a tokenizer instead
    decimal: str = "."  # what stands before the decimals of a number in a CSV: a point or a comma
    thousands: str = ""  # what stands between the thousands of a number in a CSV
    encoding: str = "utf-8"  # of a CSV or JSON lines
    skip_unlabelled: bool = False  # whether rows of a CSV without a label are left out; otherwise they are refused
    image_size: _Size | None = None  # width and height that images of a folder are scaled and cut to
    grey: bool = False  # whether these images become grey; otherwise all are in colour
    holdout: _Fraction | None = None  # the share of the records that is drawn at random to test with

    def trained(self, number: int) -> int:
        """About how many of so many records or users are not held out."""
        return max(1, round(number * (1 - (self.holdout or 0.0))))

    @property
    def trained_users(self) -> int | None:
        """About how many users are not held out, where their number is public."""
        return self.public_users and self.trained(self.public_users)


@declared
class ModelSection:
    """A model of ``noisette.nn.models``, ``package.module:callable`` or a folder of Hugging Face, and first weights."""

    name: str = "cnn"  # in a recipe without it, the model suits the data, as for noisette train
    weights: str | None = None  # a safetensors file of weights that were trained on public records
    frozen: _Texts = ("features",)  # modules that keep these weights
    # the name in BATCH_NORMS of what replaces each batch norm; all stay if left out
    batch_norm: Annotated[str, _one_of(BATCH_NORMS)] | None = None
    standardised: bool = False  # whether fixed features get the mean 0 and deviation 1 of those of public examples
    # how many principal components of public examples take the place of fixed features; 0 for none
    whitened: _Whole = 0
    # a public network in front of the model, whose features are fixed: a package that brings one, or a folder
    backbone: str | None = None
    mirrored: bool = False  # whether its features are the means of those of an image and of its mirror image


@declared
class PublicSection:
    """The public examples that give norms or features their statistics. They have no privacy guarantee."""

    data: str | None = None  # a built-in set, a folder of images or an .npz: other examples than those trained on
    examples: _Count = 128  # how many of its training examples are taken
    seed: _Whole = 0  # which ones
    classes: int | _Texts | None = None  # those of files of your own, which are read with their labels


@declared
class PrivacySection:
    """The privacy budget of all that is learned from the records, and how the gradient of one example is clipped."""

    epsilon: _Positive = 3.0
    delta: _Fraction = 1e-5
    # calibrated to the budget if left out; given, the budget limits the steps
    noise_multiplier: _Positive | None = None
    # the clipping norm: of each layer with per-layer clipping, the first with adaptive
    max_grad_norm: _Positive = 1.0
    clipping: Annotated[str, _one_of(CLIPPING_RULES)] = "flat"
    engine: Annotated[str, _one_of(ENGINES)] = "book-keeping"
    accountant: Annotated[str, _one_of(ACCOUNTANTS)] = "pld"
    allow_large_delta: bool = False


@declared
class LipschitzSection:
    """How the layers of a Lipschitz network bound the gradient of one example; if left out, clipping does."""

    tau: _Positive | None = None  # the loss is that of the scores times tau, divided by tau; must be given
    # bound on an example's gradient at the scores; 0 leaves that of the loss
    logit_clip: Annotated[float, _named(checks.not_negative)] = 0.0

    @property
    def used(self) -> bool:
        return self.tau is not None


@declared
class ProjectionSection:
    """The private principal components that the records are projected on before training; none if left out."""

    components: _Whole = 0
    noise_multiplier: Annotated[float, _named(checks.not_negative)] = 0.0


@declared
class AugmentationSection:
    """The views of an image, see :class:`noisette.nn.MirrorAndShift`; they are one gradient and cost what one costs."""

    views: _Count = 1  # how many
    flip: bool = False  # whether some are mirrored, left to right
    shift: _Whole = 0  # the most pixels by which they are shifted along each axis

    @property
    def moves(self) -> bool:
        return self.flip or self.shift > 0


@declared
class TrainingSection:
    """How the noised gradients are used. All of it is post-processing, except the number and size of the batches."""

    epochs: _Positive = 40.0
    batch_size: _Count = 1024  # expected
    lr: _Rate | None = 1.0  # without one, the rule of noisette.training.defaults gives that of SGD
    optimizer: Annotated[str, _one_of(OPTIMIZERS)] = "sgd"
    momentum: _BelowOne = 0.0  # of SGD
    cosine: bool = True  # the learning rate falls to zero along half a cosine; otherwise it is constant
    # instead of the cosine: the learning rate changes linearly to this one and stays there
    lr_end: _Rate | None = None
    lr_epochs: _Positive = 10.0  # the number of epochs that this takes
    averaging: _BelowOne = 0.0  # decay of the exponential average of the weights; 0 keeps the last weights
    average_last: _BelowOne = 0.0  # instead: the share of the steps, the last ones, whose weights are averaged evenly
    seed: _Seed = 0  # of the first weights only: noise and sampling never depend on it
    microbatch_size: _Count = 1024  # examples in memory at once, of which each view of a record is one
    # whether the step is compiled: "yes" waits for it, "auto" where the run repays it, or "no"
    compile: Annotated[str, _one_of(COMPILE)] = "auto"
    batches: Annotated[str, _one_of(BATCHES)] = "poisson"  # how they are drawn
    largest_batch: _Count | None = None  # of truncated batches: the most examples of a batch
    bands: _Count | None = None  # of cyclic batches: the groups, and the steps over which noise is correlated
    class_weights: Mapping[str, _Positive] | None = None  # by which the loss of each class counts, beside the largest


@dataclass(frozen=True)
class Settings:
    """The tables of a recipe, which may still contradict each other."""

    data: DataSection = field(default_factory=DataSection)
    model: ModelSection = field(default_factory=ModelSection)
    privacy: PrivacySection = field(default_factory=PrivacySection)
    training: TrainingSection = field(default_factory=TrainingSection)
    projection: ProjectionSection = field(default_factory=ProjectionSection)
    public: PublicSection = field(default_factory=PublicSection)
    lipschitz: LipschitzSection = field(default_factory=LipschitzSection)
    augmentation: AugmentationSection = field(default_factory=AugmentationSection)

    @classmethod
    def found_in(cls, tables: Mapping[str, Any], source: str, mistakes: checks.Mistakes) -> tuple[Settings, set[str]]:
        """The settings in tables without those that are wrong, which are added to the mistakes, and names of these."""
        kinds = get_type_hints(cls)
        sections, problems, wrong = {}, list[str](), set[str]()
        for name, table in tables.items():
            if name not in kinds:
                problems.append(unknown_key(name, kinds))
            elif not isinstance(table, Mapping):
                problems.append(f"{name} is a table: write [{name}]")
            else:
                try:
                    sections[name] = kinds[name](**table)
                except DeclarationError as error:
                    problems += [f"{name}: {problem}" for problem in error.problems]
                    wrong |= error.wrong
                    sections[name] = kinds[name](**{key: table[key] for key in table.keys() - error.wrong})
        mistakes.check(partial(refuse, source, problems))
        return Settings(**sections), wrong

    @classmethod
    def in_file(cls, path: Path, data: Mapping[str, Any], mistakes: checks.Mistakes) -> tuple[Settings, set[str]]:
        """As :meth:`found_in`, in a TOML file with these fields of its table ``data`` and a suitable model."""
        if (tables := mistakes.check(partial(_recipe_in, path))) is None:
            return cls(), {name for section in asdict(cls()).values() for name in section}
        if data and isinstance(own := tables.get("data"), dict | None):
            tables["data"] = {**(own or {}), **data}
        settings, wrong = cls.found_in(tables, str(path), mistakes)
        if not isinstance(own := tables.get("model", {}), dict) or "name" not in own:
            name = "linear" if settings.model.backbone else suited_model(settings.data)
            settings = replace(settings, model=replace(settings.model, name=name))
        return settings, wrong

    def merged(self, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """All tables, with these values in them."""
        return {name: own | dict(tables.get(name, {})) for name, own in asdict(self).items()}

    def class_weights(self, classes: int) -> list[float] | None:
        """The weight of each of so many classes, in their order, if any; a ``ValueError`` if they do not fit."""
        weights, names = self.training.class_weights, self.data.classes
        if weights is None:
            return None
        order = names if isinstance(names, tuple) else tuple(map(str, range(classes)))
        wrong = [f"{name!r} is no class" for name in weights if name not in order]
        if wrong := [*wrong, *(f"{name!r} has none" for name in order if name not in weights)]:
            needed = f"class_weights need a number for each class: {'=1,'.join(order)}=1"
            raise ValueError(f"{needed}; {checks.first_few(wrong)}")
        return [weights[name] for name in order]

    def contradictions(self) -> Iterator[tuple[set[str], str]]:
        """A message for each contradiction, after the names of settings of which another value might end it."""
        return chain(self._of_models(), self._of_lipschitz(), self._of_training(), self._of_data())

    def _of_models(self) -> Iterator[tuple[set[str], str]]:
        model, public, projection = self.model, self.public, self.projection
        if model.whitened and model.standardised:
            yield {"whitened"}, "whitened features have mean 0 already; leave out standardised, or whitened"
        if (model.weights is not None or model.backbone is not None) and projection.components:
            yield {"components"}, "public weights are for the data, not for its projection; leave out one of the two"
        if model.weights is not None and model.backbone is not None:
            yield {"weights"}, "a backbone brings its own weights; leave out weights, or backbone"
        if model.mirrored and model.backbone is None:
            yield {"backbone"}, "mirrored is for the features of a backbone; name one, or leave mirrored out"
        if (projection.components > 0) != (projection.noise_multiplier > 0):
            yield {"components"}, "a projection has components and a noise_multiplier; give both, or neither"
        of_features = model.standardised or model.whitened > 0
        using = {"batch_norm", "standardised", "whitened"}
        # a file of weights holds the statistics of frozen norms
        given = model.batch_norm == "frozen" and model.weights is not None and not of_features
        if model.batch_norm not in NEED_PUBLIC and not of_features:
            if public != PublicSection():
                norms = f"batch_norm {', '.join(NEED_PUBLIC)}, or for standardised or whitened features"
                yield using, f"public examples are for {norms}, not {model.batch_norm}; leave them out"
        elif public.data is None and not given:
            needs = f"whitened = {model.whitened}" if model.whitened else f'batch_norm = "{model.batch_norm}"'
            needs = "standardised = true" if model.standardised else needs
            yield using, f'{needs} takes its statistics from public examples; name their set: [public] data = "kmnist"'
        elif public.data is not None:
            if Path(public.data).resolve() == Path(self.data.name).resolve():
                yield {"name"}, f"public data {public.data!r} is the set that is trained on, so private; name another"
            if public.examples < 2:
                yield {"examples"}, f"expected examples >= 2, got examples={public.examples}: fewer have no variance"

    def _of_lipschitz(self) -> Iterator[tuple[set[str], str]]:
        if not self.lipschitz.used:
            if self.lipschitz.logit_clip:
                yield {"tau"}, "give lipschitz.tau, by which the loss is scaled, or leave out the table lipschitz"
            return
        privacy, plain, norm = self.privacy, PrivacySection(), self.model.batch_norm
        names = ("max_grad_norm", "clipping", "engine")
        if given := [name for name in names if getattr(privacy, name) != getattr(plain, name)]:
            yield set(given), f"lipschitz layers bound gradients, nothing is clipped; leave out {', '.join(given)}"
        if norm is not None:
            yield {"batch_norm"}, f"batch_norm = {norm!r} has no Lipschitz bound; leave it out, or the table lipschitz"
        if self.augmentation != AugmentationSection():
            yield {"views"}, "lipschitz layers take each record as it is; leave out augmentation or lipschitz"
        if self.data.target is not None or self.training.class_weights:
            yield {"target"}, "the loss of lipschitz is for classes of one weight; leave out target and class_weights"

    def _of_training(self) -> Iterator[tuple[set[str], str]]:
        training, data, optimizer = self.training, self.data, self.training.optimizer
        if optimizer != "sgd" and training.lr is None:
            yield {"lr"}, f'the rule for learning rates is for SGD; with optimizer = "{optimizer}" give lr'
        if optimizer != "sgd" and training.momentum:
            yield {"optimizer"}, f'momentum is that of SGD; with optimizer = "{optimizer}" leave it out'
        if training.averaging and training.average_last:
            yield {"averaging"}, "averaging and average_last are two averages of the weights; give one of them"
        for batches, name in (("truncated", "largest_batch"), ("cyclic", "bands")):
            if (training.batches == batches) != (getattr(training, name) is not None):
                yield {"batches", name}, f'batches = "{batches}" needs {name}, and no other batches have it'
        if (largest := training.largest_batch) is not None and largest < (expected := training.batch_size):
            few, enough = f"largest_batch = {largest} would cut most", expected + math.ceil(5 * math.sqrt(expected))
            yield {"batch_size"}, f"{few} batches, of {expected} expected; give {enough} or more"
        if self.augmentation.views > 1 and not self.augmentation.moves:
            yield {"flip", "shift"}, "views are mirrored or shifted; give flip = true or shift to the augmentation"
        if training.class_weights and data.target is not None:
            yield {"target"}, "class_weights are for classes, not for a number to predict; leave them out, or target"

    def _of_data(self) -> Iterator[tuple[set[str], str]]:
        data, batches = self.data, self.training.batches
        if data.image_size is None and data.grey:
            yield {"image_size"}, "grey is the colour of images that are brought to a size; give image_size"
        if data.holdout is not None and batches == "truncated":
            many = "how many are held out is random, not public"
            yield {"batches"}, f"{many}: leave out holdout, or take other batches than truncated"
        if data.holdout is not None and data.test is not None:
            yield {"test"}, "test examples come from a second file or are held out; give test or holdout, not both"
        if data.target is None and data.unit:
            yield {"target"}, "unit is that of a number to predict; give its bounds as target"
        if data.users is None:
            if data.records_per_user is not None or data.public_users is not None:
                yield {"users"}, "records_per_user and public_users are for guarantees for users; give the column users"
            return
        if data.records_per_user is None:
            most = "records_per_user: the most records of one user that are used"
            yield {"records_per_user"}, f"users = {data.users!r} needs {most}"
        if self.projection.components:
            yield {"users"}, "private principal components have a guarantee for records; leave them out, or users"
        if batches != "poisson":
            yield {"batches"}, f'with users batches are Poisson; leave batches = "{batches}" out'


@dataclass(frozen=True)
class Recipe(Settings):
    """Everything that determines a run, except the secret noise; a ``ValueError`` lists what contradicts itself."""

    def __post_init__(self) -> None:
        if problems := [problem for _, problem in self.contradictions()]:
            raise ValueError("; ".join(problems))

    @classmethod
    def read(cls, path: Path, data: Mapping[str, Any] | None = None) -> Self:
        """The recipe that :meth:`in_file` finds; raises what :meth:`of` raises."""
        mistakes = checks.Mistakes()
        settings, _ = cls.in_file(path, data or {}, mistakes)
        mistakes.refuse()
        return cls(**vars(settings))

    @classmethod
    def of(cls, tables: Mapping[str, Any], source: str) -> Self:
        """The recipe in these tables, as :func:`dataclasses.asdict` makes them; missing fields keep their defaults.

        Raises:
            ValueError: there are unknown keys, values of another type or outside their domain; all are listed, and
                ``source`` is named. Or settings contradict each other.
        """
        mistakes = checks.Mistakes()
        settings, _ = cls.found_in(tables, source, mistakes)
        mistakes.refuse()
        return cls(**vars(settings))

    def changed(self, tables: Mapping[str, Mapping[str, Any]], source: str) -> Self:
        """The recipe with these values of its tables; raises what :meth:`of` raises."""
        return self.of(self.merged(tables), source)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        if path.name.lower().endswith((*SUFFIXES, ".npz")):
            way_out = f"give it to noisette train as --data {path}, or as the name under [data] of a recipe"
            raise ValueError(f"{path} is a table, where settings in TOML are expected: {way_out}") from error
        raise ValueError(f"{path} is not a TOML file: {error}") from error


def _recipe_in(path: Path) -> dict[str, Any]:
    tables = _toml(path)
    own, is_schema = tables.get("data"), bool(tables) and tables.keys() <= get_type_hints(DataSection).keys()
    if is_schema or (isinstance(own, dict) and isinstance(own.get("columns"), str)):
        what = "is a schema, not a recipe" if is_schema else "names a schema as columns"
        place = "under [data], and those of a column under [data.columns.NAME]"
        raise ValueError(f"{path} {what}: noisette train takes a schema as --columns; in recipes its lines go {place}")
    return tables


def read_schema(path: Path) -> dict[str, Any]:
    """The fields of :class:`DataSection` that a schema gives; a ``ValueError`` lists all that is wrong with it."""
    tables = _toml(path)
    of_a_run = tables.keys() & {"name", "test"}  # places of files
    problems = [f"{key} is given on the command line or in a recipe; leave it out" for key in sorted(of_a_run)]
    given: dict[str, Any] = {}
    try:
        given = vars(DataSection(**{key: value for key, value in tables.items() if key not in of_a_run}))
    except DeclarationError as error:
        problems += error.problems
    refuse(str(path), problems)
    return {key: given[key] for key in tables}


_ON_COUNTS = "ranked-word-counts"
_BUILT_IN = {
    "digits": "cnn",
    **dict.fromkeys(("mnist", "fashion-mnist", "cifar10", "kmnist"), "scattering"),
    **dict.fromkeys(("sst2", "imdb", "ag-news-words"), _ON_COUNTS),
}


def suited_model(data: DataSection) -> str:
    """The name of a model for a built-in data set, or for tables, texts and images of one's own.

    >>> suited_model(DataSection("adult")), suited_model(DataSection("own.csv", text="review"))
    ('table', 'ranked-word-counts')
    """
    other = _ON_COUNTS if data.text is not None else "cnn" if Path(data.name).is_dir() else TABLE
    return _BUILT_IN.get(data.name, other)


_OF_COUNTS = ("word-counts", _ON_COUNTS)  # linear layers
_TEXT_SIZES = {"sst2": 67_349, "imdb": 25_000, "ag-news-words": 18_349}
_SIZES = _TEXT_SIZES | {"adult": 32_561}
_TEXTS = TrainingSection(epochs=10, batch_size=1024, lr=0.01, optimizer="adam")
_RATE_ON_TEXT_FEATURES = 0.05  # the best on SST-2, of 2,000 and 16,000 sentences at epsilon 1 and 3
_PRETRAINED = TrainingSection(epochs=5, batch_size=1024, lr=0.0005, optimizer="adam", microbatch_size=64)
# Settings that are known to work on the built-in data sets.
_FEATURES = PrivacySection(max_grad_norm=0.1)
_IMAGES = TrainingSection(epochs=40, batch_size=4096, lr=4.0, momentum=0.9, averaging=0.98)
_KNOWN_TO_WORK = {
    "digits": (PrivacySection(delta=1e-4), TrainingSection(batch_size=360, cosine=False, averaging=0.95)),
    **dict.fromkeys(("mnist", "fashion-mnist", "cifar10"), (_FEATURES, _IMAGES)),
    "kmnist": (_FEATURES, replace(_IMAGES, batch_size=1024)),
}


def default_recipe(
    data: Mapping[str, Any],
    model: str | None = None,
    optimizer: str | None = None,
    backbone: str | None = None,
    epsilon: float = PrivacySection().epsilon,
) -> Settings:
    """Settings that are known to work for a built-in data set; for another one, what suits its kind and declared size.

    ``data`` are fields of the recipe's table ``data``; names of a model, an optimizer and a public network in front of
    the model are given if they are chosen.

    >>> default_recipe({"name": "own.csv", "size": 700}).training.batch_size
    210
    """
    section = DataSection(**data)
    name = model or ("linear" if backbone else suited_model(section))
    privacy, training = (None if backbone else _KNOWN_TO_WORK.get(section.name)) or _suited(section, name, epsilon)
    if model is not None and Path(model).is_dir():
        training = replace(_PRETRAINED, batch_size=training.batch_size)
    if backbone and (section.text is not None or section.name in _TEXT_SIZES):
        training = replace(training, lr=_RATE_ON_TEXT_FEATURES)
    if optimizer in OPTIMIZERS and optimizer != training.optimizer:
        lr = 0.003 if optimizer == "adam" else TrainingSection().lr
        training = replace(training, optimizer=optimizer, lr=lr, momentum=0.0)
    return Settings(section, ModelSection(name, backbone=backbone), privacy=privacy, training=training)


def _suited(data: DataSection, model: str, epsilon: float) -> tuple[PrivacySection, TrainingSection]:
    """Delta, norm, batches, epochs and learning rate by the declared size, as ``training.defaults`` has them."""
    is_text, size = data.text is not None or data.name in _TEXT_SIZES, data.size or 0
    records = _SIZES.get(data.name) or data.trained(size)
    privacy = PrivacySection(delta=delta_for(records) if size >= 1 else PrivacySection().delta)
    if is_text and model in _OF_COUNTS and (size >= 1 or data.name in _TEXT_SIZES):
        training = TrainingSection(epochs=15, batch_size=math.ceil(records / 4), lr=10.0, momentum=0.9, cosine=False)
        return replace(privacy, max_grad_norm=0.7), replace(training, average_last=0.5)
    if is_text:
        batch = min(_TEXTS.batch_size, math.ceil(records / 10)) if records > 1 else _TEXTS.batch_size
        return privacy, replace(_TEXTS, batch_size=batch)
    if model == TABLE:
        is_large = data.target is None and epsilon * records >= MANY_RECORDS
        privacy = replace(privacy, max_grad_norm=LARGER_TABLE_NORM if is_large else TABLE_NORM)
    if size < 1:
        return privacy, TrainingSection(lr=None)
    batches = batches_for(records)
    return privacy, TrainingSection(lr=None, batch_size=batches.expected_batch_size, epochs=batches.epochs)


def check_data(recipe: Settings, unknown: Set[str] = frozenset()) -> None:
    """Check without a record that data are there, and have the columns unless a setting of the data is ``unknown``."""
    for name in (recipe.data.name, recipe.public.data or recipe.data.name):
        if name not in data_sets.names() and not Path(name).exists():
            data_sets.load(name)
    if recipe.data.name.lower().endswith(SUFFIXES) and unknown.isdisjoint(own.name for own in fields(DataSection)):
        check_columns(Path(recipe.data.name), declaration_of(recipe))


def load_data(recipe: Settings, data_dir: Path | None, *, holdout_key: bytes = b"") -> DataSet:
    """The records of a recipe, without those that a secret random key holds out; a ``DataError`` if not as declared."""
    section = recipe.data
    data = data_sets.load(section.name, data_dir=data_dir, declaration=declaration_of(recipe))
    return data if section.holdout is None or not holdout_key else hold_out(data, section.holdout, holdout_key)


def declaration_of(recipe: Settings) -> Declaration:
    """What a recipe declares about its records; a ``DataError`` where that contradicts itself."""
    section = recipe.data
    network = folder_of(recipe.model.backbone) if recipe.model.backbone else Path(recipe.model.name)
    alike = ("classes", "size", "label", "users", "text", "decimal", "thousands", "encoding", "skip_unlabelled")
    return Declaration(
        **{name: getattr(section, name) for name in alike},
        test=Path(section.test) if section.test else None,
        columns=Columns.of(section.columns) if section.columns else None,
        target=None if section.target is None else Target(*section.target, section.unit),
        numbering=Numbering(section.tokens, section.words, network if (network / "config.json").is_file() else None),
        images=ImageForm(*section.image_size, section.grey) if section.image_size else None,
    )


def check_plain(recipe: Settings) -> None:
    """Check that a recipe can be trained without privacy: on Poisson batches of records, as they are."""
    others = recipe.lipschitz.used, recipe.projection.components, recipe.data.users
    if recipe.training.batches != "poisson" or any(others):
        way_out = "leave out batches, lipschitz, projection and users"
        raise ValueError(f"without privacy batches are Poisson batches of records, as they are; {way_out}")


def load_public(recipe: Settings, data_dir: Path | None) -> DataSet | None:
    """The data set of the recipe's public examples, if it has any; a ``DataError`` if they cannot be read."""
    section = recipe.public
    if section.data is None:
        return None
    own = section.data not in data_sets.names()
    declaration = Declaration(classes=section.classes, size=section.examples if own else None)
    return data_sets.load(section.data, data_dir=data_dir, declaration=declaration)
