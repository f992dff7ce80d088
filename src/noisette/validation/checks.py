"""The preflight checks in order, and the hook that runs them in the first call of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from noisette.errors import PrivacyError
from noisette.mechanisms.bounded_sum import DerivedBound, GradientBound
from noisette.validation.additivity import check_additivity
from noisette.validation.batch_norm import check_no_batch_norm
from noisette.validation.batch_size_independence import check_batch_size_independence
from noisette.validation.buffers import buffers_restored, check_buffers
from noisette.validation.deterministic import DisableRandomness
from noisette.validation.probe_inputs import SEED, Call, public_batch
from noisette.validation.worst_case_search import max_gradient_ratio

_SEARCH_STARTS = 2  # examples from which the search for a worst case starts


class ValidateOnFirstCall:
    """A forward pre-hook that runs the checks in the first call with gradients in each mode of the model.

    A mode is the set of modules in training mode: after ``model.train()`` a batch norm mixes examples that did not do
    so in evaluation mode. A copy of the model is not checked.
    """

    def __init__(self, bound: GradientBound | None) -> None:
        self._bound = bound
        self._proven: set[tuple[bool, ...]] = set()

    def __deepcopy__(self, memo: dict[int, object]) -> ValidateOnFirstCall:
        return ValidateOnFirstCall(None)

    def __reduce__(self) -> tuple[type[ValidateOnFirstCall], tuple[None]]:
        return ValidateOnFirstCall, (None,)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = self._bound
        if bound is None or module is not bound.model or not torch.is_grad_enabled():
            return
        mode = tuple(part.training for part in module.modules())
        if mode in self._proven:
            return
        self._proven.add(mode)
        try:
            prove(bound, Call(args, kwargs))
        except BaseException:
            self._proven.discard(mode)
            raise


def prove(bound: GradientBound, example: Call) -> None:
    """Run all checks of this bound and its model, for inputs shaped like ``example``.

    Random operations such as dropout are replaced by constants, buffers and the random state are restored, and only the
    shapes and types of ``example`` are read.

    Guarantee: a model is refused if its gradients, or their clipping, depend on other examples of the batch.

    Raises:
        PrivacyError: naming the first module that mixes examples, or the buffers that store information about inputs.
    """
    for check in CHECKS:
        check.run(bound, example)


def _check_worst_case(bound: GradientBound, example: Call) -> None:
    """If the bound is derived from the network, a short search finds no example that exceeds it.

    Raises:
        PrivacyError: the search found one.
    """
    with torch.random.fork_rng(), buffers_restored(bound.model), DisableRandomness():
        torch.manual_seed(SEED)
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
        lambda bound, example: check_batch_size_independence(bound.model, example),
    ),
    Check("no example found by search exceeds the bound", _check_worst_case),
    Check("no buffer stores information about inputs", lambda bound, example: check_buffers(bound.model, example)),
)
