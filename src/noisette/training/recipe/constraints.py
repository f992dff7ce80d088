"""The checks of a recipe: of each table alone, and of the tables together."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from noisette import errors as checks
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.clipping.registry import CLIPPING_RULES, ENGINES
from noisette.data.columns import Columns
from noisette.training.recipe.choices import ALLOCATIONS, BATCH_NORMS, BATCHES, COMPILE, NEED_PUBLIC, OPTIMIZERS
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
