"""What the tables of a recipe may say, each alone and beside each other."""

from __future__ import annotations

from pathlib import Path

from noisette._internal import checks
from noisette.accounting.accountants.registry import ACCOUNTANTS
from noisette.training.recipe.sections import (
    DataSection,
    LipschitzSection,
    ModelSection,
    PrivacySection,
    ProjectionSection,
    PublicSection,
)

# What may take the place of batch norm, and which of these takes its statistics from public examples.
NEED_PUBLIC = ("public", "per-example", "per-example-exact", "frozen", "mixture")
BATCH_NORMS = (*NEED_PUBLIC, "group", "layer", "instance")
ALLOCATIONS = ("global", "per-layer", "optimal")


def check_start(model: ModelSection, projection: ProjectionSection) -> None:
    """Public weights fit what the model is given."""
    if model.weights is not None and projection.components:
        raise ValueError("public weights were learnt on the data itself, not on its projection; leave out one of them")


def check_batch_norm(name: str | None) -> None:
    """There is such a norm."""
    if name is not None and name not in BATCH_NORMS:
        raise ValueError(f"expected batch_norm to be one of {', '.join(BATCH_NORMS)}, got {name!r}")


def check_public(public: PublicSection, model: ModelSection, data: DataSection) -> None:
    """There are public examples where something needs them and nowhere else, and they are not those trained on."""
    if model.batch_norm not in NEED_PUBLIC and not model.standardised:
        if public != PublicSection() and model.batch_norm in (None, *BATCH_NORMS):
            raise ValueError(
                f"public examples are for batch_norm {', '.join(NEED_PUBLIC)}, or for standardised features, not "
                f"{model.batch_norm}; leave them out"
            )
        return
    if public.data is None:
        if model.batch_norm == "frozen" and model.weights is not None and not model.standardised:
            return  # the statistics come with the weights
        needs = "standardised = true" if model.standardised else f'batch_norm = "{model.batch_norm}"'
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


def check_no_guarantee(privacy: PrivacySection, projection: ProjectionSection) -> None:
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


def check_accountant(name: str) -> None:
    """There is such an accountant."""
    names = [accountant.name for accountant in ACCOUNTANTS.values() if accountant.in_recipes]
    if name not in names:
        raise ValueError(f"expected accountant to be one of {', '.join(names)}, got {name!r}")


def check_lipschitz(lipschitz: LipschitzSection, model: ModelSection, privacy: PrivacySection) -> None:
    """What bounds one example is one thing: the layers, or clipping."""
    if lipschitz.tau is None:
        if lipschitz != LipschitzSection():
            raise ValueError("give lipschitz.tau, by which the loss is scaled, or leave out the table lipschitz")
        return
    checks.all_of(
        lambda: checks.positive(tau=lipschitz.tau),
        lambda: lipschitz.logit_clip == 0 or checks.positive(logit_clip=lipschitz.logit_clip),
        lambda: _check_allocation(lipschitz.allocation),
        lambda: _check_no_clipping(privacy),
        lambda: _check_no_norm(model),
    )


def _check_allocation(name: str) -> None:
    if name not in ALLOCATIONS:
        raise ValueError(f"expected allocation to be one of {', '.join(ALLOCATIONS)}, got {name!r}")


def _check_no_clipping(privacy: PrivacySection) -> None:
    plain = PrivacySection()
    if (privacy.max_grad_norm, privacy.per_layer) != (plain.max_grad_norm, plain.per_layer):
        raise ValueError(
            "with a table lipschitz no gradient is clipped, the layers bound it; leave out max_grad_norm and per_layer"
        )


def _check_no_norm(model: ModelSection) -> None:
    if model.batch_norm is not None:
        raise ValueError(
            f"batch_norm = {model.batch_norm!r} has no Lipschitz bound; leave it out, or the table lipschitz"
        )
