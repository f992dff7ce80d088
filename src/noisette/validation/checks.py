"""The preflight checks in order, and the hook that runs them in the first call of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from noisette.core.model_checks import check_no_batch_norm
from noisette.core.randomness import seed_torch
from noisette.core.release import DerivedBound, GradientBound
from noisette.errors import PrivacyError
from noisette.validation.additivity import check_additivity
from noisette.validation.batch_size_independence import check_batch_size_independence
from noisette.validation.buffers import buffers_restored, check_buffers
from noisette.validation.checked_calls import attributes_restored
from noisette.validation.deterministic import DisableRandomness
from noisette.validation.probe_inputs import SEED, Call, public_batch
from noisette.validation.seeded_randomness import randomness_seeded
from noisette.validation.usable_inputs import with_usable_kinds
from noisette.validation.worst_case_search import max_gradient_ratio

_SEARCH_STARTS = 2  # examples from which the search for a worst case starts


def prove(bound: GradientBound, example: Call, public: object = None) -> None:
    """Run all checks of this bound and its model, for inputs shaped like ``example``.

    Random operations such as dropout are replaced by constants. Buffers, random states and the bound's pending sums are
    restored. Of ``example`` only shapes, types and plain arguments are read; of ``public``, the user's own public
    inputs, the values.

    Guarantee: a model is refused if its gradients, or their clipping, depend on other examples of the batch.

    Raises:
        PrivacyError: naming the first module that mixes examples, or the buffers that store information about inputs;
            or no public inputs were found that the model takes.
    """
    check_no_batch_norm(bound.model)  # a batch norm cannot take one example, and its message names it
    with bound.set_aside(), attributes_restored(bound.model), randomness_seeded(bound.model):
        call = with_usable_kinds(bound.model, example, public)
        for check in CHECKS:
            check.run(bound, call)


def prove_size(bound: GradientBound, example: Call, public: object, size: int) -> None:
    """Check that outputs do not depend on the batch size, up to this number of examples.

    It costs one forward pass of so many examples in double precision; where that does not fit in memory, one in the
    precision of the training.

    Raises:
        PrivacyError: they do.
    """
    exact = not isinstance(bound, DerivedBound)
    with bound.set_aside(), attributes_restored(bound.model):
        call = with_usable_kinds(bound.model, example, public)
        check_batch_size_independence(bound.model, call, size, exact=exact)


def check_worst_case(bound: GradientBound, example: Call) -> None:
    """If the bound is derived from the network, a short search finds no example that exceeds it.

    Raises:
        PrivacyError: the search found one.
    """
    with torch.random.fork_rng(), buffers_restored(bound.model), DisableRandomness():
        seed_torch(SEED)
        inputs = public_batch(example).tensors()
        if not isinstance(bound, DerivedBound) or len(inputs) != 1 or not inputs[0].is_floating_point():
            return
        starts, limit = inputs[0][:_SEARCH_STARTS], bound.score_gradient_bound()
        ratio = max_gradient_ratio(bound.model, starts, limit, bound.sensitivities())
    if not ratio <= 1 + 1e-5:
        raise PrivacyError(
            f"an example was found whose gradient is {ratio:.4g} times its bound: a module of the model states a bound "
            "that does not hold. Do not train with this model"
        )


@dataclass(frozen=True)
class Check:
    """A named check of a bound on a model; ``run`` raises ``PrivacyError`` if it fails."""

    name: str
    run: Callable[[GradientBound, Call], None]


CHECKS = (
    Check("no module normalises over the batch", lambda bound, example: check_no_batch_norm(bound.model)),
    Check("the bound holds for one example, and sums are additive over a batch", check_additivity),
    Check(
        "outputs do not depend on the batch size",
        lambda bound, example: check_batch_size_independence(
            bound.model, example, exact=not isinstance(bound, DerivedBound)
        ),
    ),
    Check("no example found by search exceeds the bound", check_worst_case),
    Check("no buffer stores information about inputs", lambda bound, example: check_buffers(bound.model, example)),
)
