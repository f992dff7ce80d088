"""Proves the bound on a model inside its first call: all checks, in order."""

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

_SOUGHT_FROM = 2  # examples that a search for a steeper one starts from


class ValidateOnFirstCall:
    """A hook before the calls of a model: proves the bound inside the first recorded call in each of its modes.

    A mode is which modules train and which evaluate: ``model.train()`` can wake a batch norm that was proven asleep.
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
    """Check the bound on this model: singleton bound (S1) and additivity (S2), for inputs shaped like ``example``.

    Random operations such as dropout are stilled, buffers and the random state are put back, and only the shapes and
    types of ``example`` are read.

    Guarantee: a model whose gradients, or their clipping, depend on other examples of the batch does not pass.

    Raises:
        PrivacyError: naming the first module whose output for one example changes with the others, or what the model
            keeps of its inputs.
    """
    for check in CHECKS:
        check.run(bound, example)


def _check_worst_case(bound: GradientBound, example: Call) -> None:
    """Where the bound follows from the network, no example that a short ascent finds exceeds it."""
    with torch.random.fork_rng(), buffers_restored(bound.model), DisableRandomness():
        torch.manual_seed(SEED)
        inputs = public_batch(example).tensors()
        if not isinstance(bound, DerivedBound) or len(inputs) != 1 or not inputs[0].is_floating_point():
            return
        reached = max_gradient_ratio(bound.model, inputs[0][:_SOUGHT_FROM], bound.score_limit(), bound.sensitivities())
    if not reached <= 1 + 1e-5:
        raise PrivacyError(
            f"an example was found whose gradient is {reached:.4g} times its bound: a module of the model states a "
            "bound of itself that does not hold. Do not train with this model"
        )


@dataclass(frozen=True)
class Check:
    """One of the things that a bound is checked for on a model; ``run`` raises ``PrivacyError`` where it fails."""

    name: str
    run: Callable[[GradientBound, Call], None]


CHECKS = (
    Check("no module normalises over the batch", lambda bound, example: check_no_batch_norm(bound.model)),
    Check("one example stays within the bound, a batch is the sum of its examples", check_additivity),
    Check(
        "an example among many answers as among few",
        lambda bound, example: check_batch_size_independence(bound.model, example),
    ),
    Check("no example is steeper than its layers allow", _check_worst_case),
    Check("nothing of the inputs is kept", lambda bound, example: check_buffers(bound.model, example)),
)
