"""A run as data: a TOML file of six short tables, read into frozen dataclasses."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_args, get_type_hints

from noisette import _check
from noisette.accounting import Accountant, MomentsAccountant, PldAccountant, RdpAccountant


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

    @property
    def couples(self) -> bool:
        """Whether one example's statistics depend on the others, so that nothing can be promised to any."""
        return self.batch_norm == "mixture"


@dataclass(frozen=True)
class PublicSection:
    """The public examples that a norm takes its statistics from; nothing is promised to them."""

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
    piece_size: int = 1024  # examples at once in memory


@dataclass(frozen=True)
class Recipe:
    """Everything that determines a run but the secret noise."""

    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    privacy: PrivacySection = PrivacySection()
    training: TrainingSection = TrainingSection()
    projection: ProjectionSection = ProjectionSection()
    public: PublicSection = PublicSection()

    def __post_init__(self) -> None:
        projection, privacy, training = self.projection, self.privacy, self.training
        epsilon, noise, lr_end = privacy.epsilon, privacy.noise_multiplier, training.lr_end
        _check.all_of(
            lambda: projection == ProjectionSection() or _check.count(components=projection.components),
            lambda: projection == ProjectionSection() or _check.positive(noise_multiplier=projection.noise_multiplier),
            lambda: _check_start(self.model, projection),
            lambda: _check_batch_norm(self.model.batch_norm),
            lambda: _check_public(self.public, self.model, self.data),
            lambda: not self.model.couples or _check_unclaimed(privacy, projection),
            lambda: epsilon is None or _check.positive(epsilon=epsilon),
            lambda: _check.open_fraction(delta=privacy.delta),
            lambda: noise is None or _check.positive(noise_multiplier=noise),
            lambda: _check.positive(max_grad_norm=privacy.max_grad_norm),
            lambda: _check_accountant(privacy.accountant),
            lambda: _check.positive(epochs=training.epochs),
            lambda: _check.count(batch_size=training.batch_size),
            lambda: _check.positive(lr=training.lr),
            lambda: lr_end is None or _check.positive(lr_end=lr_end),
            lambda: _check.positive(lr_epochs=training.lr_epochs),
            lambda: _check.below_one(momentum=training.momentum),
            lambda: _check.below_one(averaging=training.averaging),
            lambda: _check.count(piece_size=training.piece_size),
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
        sections = _read_fields(cls, tables, "", problems)
        if problems:
            raise ValueError(f"{source} has {len(problems)} problems:\n  " + "\n  ".join(problems))
        return cls(**sections)

    @classmethod
    def default_for(cls, data: str) -> Self:
        """A recipe that is known to work for this data set, or a middling one."""
        known = _KNOWN_TO_WORK.get(data)
        if known is None:
            return cls(DataSection(name=data), ModelSection("mlp"))
        privacy, training, model = known
        return cls(DataSection(name=data), ModelSection(model), privacy=privacy, training=training)


ACCOUNTANTS: Mapping[str, Accountant] = {
    accountant.name: accountant for accountant in (PldAccountant(), RdpAccountant(), MomentsAccountant())
}


# What may take the place of batch norm, and which of these takes its statistics from public examples.
NEED_PUBLIC = ("public", "per-example", "per-example-exact", "frozen", "mixture")
BATCH_NORMS = (*NEED_PUBLIC, "group", "layer", "instance")


def _check_start(model: ModelSection, projection: ProjectionSection) -> None:
    if model.weights is not None and projection.components:
        raise ValueError("public weights were learnt on the data itself, not on its projection; leave out one of them")


def _check_batch_norm(name: str | None) -> None:
    if name is not None and name not in BATCH_NORMS:
        raise ValueError(f"expected batch_norm to be one of {', '.join(BATCH_NORMS)}, got {name!r}")


def _check_public(public: PublicSection, model: ModelSection, data: DataSection) -> None:
    """There are public examples where the norm needs them and nowhere else, and they are not those trained on."""
    if model.batch_norm not in NEED_PUBLIC:
        if public != PublicSection() and model.batch_norm in (None, *BATCH_NORMS):
            raise ValueError(
                f"public examples are for batch_norm {', '.join(NEED_PUBLIC)}, not {model.batch_norm}; leave them out"
            )
        return
    if public.data is None:
        if model.batch_norm == "frozen" and model.weights is not None:
            return  # the statistics come with the weights
        raise ValueError(
            f'batch_norm = "{model.batch_norm}" takes its statistics from public examples; name their set, such as '
            '[public] data = "kmnist"'
        )
    if Path(public.data).resolve() == Path(data.name).resolve():
        raise ValueError(
            f"public data {public.data!r} is the set that is trained on, whose examples are private; name another"
        )
    if public.examples < 2:
        raise ValueError(f"expected examples >= 2, got examples={public.examples}: fewer have no variance")
    if public.seed < 0:
        raise ValueError(f"expected seed >= 0, got seed={public.seed}")


def _check_unclaimed(privacy: PrivacySection, projection: ProjectionSection) -> None:
    """Nothing is asked of a run without a claim that only a claim could give."""
    problems = []
    if privacy.epsilon is not None:
        problems.append(f"leave out epsilon={privacy.epsilon:g}, since no budget can be kept")
    if privacy.noise_multiplier is None:
        problems.append("give privacy.noise_multiplier, since there is no budget to find it from")
    if projection != ProjectionSection():
        problems.append("leave out the projection, since nothing would be paid for its components")
    if problems:
        raise ValueError(
            'batch_norm = "mixture" couples the examples, so a run with it has no privacy claim: '
            + ", ".join(problems)
            + '; or take batch_norm = "public", which has one'
        )


def _check_accountant(name: str) -> None:
    if name not in ACCOUNTANTS:
        raise ValueError(f"expected accountant to be one of {', '.join(ACCOUNTANTS)}, got {name!r}")


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


def _read_fields(owner: type, table: Mapping[str, Any], where: str, problems: list[str]) -> dict[str, Any]:
    """Keyword arguments for a dataclass from a table, opening nested dataclasses; problems are collected."""
    known = {f.name: f for f in fields(owner)}
    types = get_type_hints(owner)
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known here: {', '.join(known)}"
            problems.append(f"unknown key {where}{key}: {hint}")
        elif isinstance(known[key].default, tuple(_SECTIONS)):
            if isinstance(value, dict):
                values[key] = types[key](**_read_fields(types[key], value, f"{where}{key}.", problems))
            else:
                problems.append(f"{where}{key} is a table: write [{key}]")
        else:
            values[key] = _typed(value, types[key], known[key], f"{where}{key}", problems)
    return values


_SECTIONS = (DataSection, ModelSection, ProjectionSection, PrivacySection, PublicSection, TrainingSection)


def _typed(value: Any, expected: Any, known: Field[Any], where: str, problems: list[str]) -> Any:
    """The value if it is of the field's type, with lists as tuples and whole numbers as floats where wanted."""
    if isinstance(value, list):
        value = tuple(tuple(item) if isinstance(item, list) else item for item in value)
    if isinstance(value, dict):
        value = {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}
    plain = {kind for kind in (*get_args(expected), expected) if isinstance(kind, type)}
    kinds = {getattr(kind, "__origin__", kind) for kind in (*get_args(expected), expected)}
    if float in plain and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = tuple(kind for kind in kinds if isinstance(kind, type))
    if (isinstance(value, bool) and bool not in wanted) or not isinstance(value, wanted):
        default = "" if known.default is MISSING else f", like {known.default!r}"
        problems.append(f"{where} = {value!r} is not of the expected type{default}")
    return value
