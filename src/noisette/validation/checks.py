"""Proves the bound on a model inside its first call: all checks, in order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from noisette.errors import PrivacyRefusal
from noisette.mechanisms.bounded_sum import Derived, GradientBound
from noisette.validation.additivity import refuse_coupling
from noisette.validation.batch_norm import refuse_mixing_modules
from noisette.validation.batch_size_independence import refuse_crowding
from noisette.validation.buffers import buffers_kept, refuse_remembering
from noisette.validation.deterministic import Stilled
from noisette.validation.probe_inputs import SEED, Call, public_batch
from noisette.validation.worst_case_search import steepest_found

_SOUGHT_FROM = 2  # examples that a search for a steeper one starts from


class ProvenFirst:
    """A hook before the calls of a model: proves the bound inside the first recorded call in each of its modes.

    A mode is which modules train and which evaluate: ``model.train()`` can wake a batch norm that was proven asleep.
    """

    def __init__(self, bound: GradientBound | None) -> None:
        self._bound = bound
        self._proven: set[tuple[bool, ...]] = set()

    def __deepcopy__(self, memo: dict[int, object]) -> ProvenFirst:
        return ProvenFirst(None)

    def __reduce__(self) -> tuple[type[ProvenFirst], tuple[None]]:
        return ProvenFirst, (None,)

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
        PrivacyRefusal: naming the first module whose output for one example changes with the others, or what the model
            keeps of its inputs.
    """
    for check in CHECKS:
        check.run(bound, example)


def _refuse_steeper(bound: GradientBound, example: Call) -> None:
    """Where the bound follows from the network, no example that a short ascent finds exceeds it."""
    with torch.random.fork_rng(), buffers_kept(bound.model), Stilled():
        torch.manual_seed(SEED)
        inputs = public_batch(example).tensors()
        if not isinstance(bound, Derived) or len(inputs) != 1 or not inputs[0].is_floating_point():
            return
        reached = steepest_found(bound.model, inputs[0][:_SOUGHT_FROM], bound.score_limit(), bound.sensitivities())
    if not reached <= 1 + 1e-5:
        raise PrivacyRefusal(
            f"an example was found whose gradient is {reached:.4g} times its bound: a module of the model states a "
            "bound of itself that does not hold. Do not train with this model"
        )


@dataclass(frozen=True)
class Check:
    """One of the things that a bound is checked for on a model; ``run`` raises ``PrivacyRefusal`` where it fails."""

    name: str
    run: Callable[[GradientBound, Call], None]


CHECKS = (
    Check("no module normalises over the batch", lambda bound, example: refuse_mixing_modules(bound.model)),
    Check("one example stays within the bound, a batch is the sum of its examples", refuse_coupling),
    Check("an example among many answers as among few", lambda bound, example: refuse_crowding(bound.model, example)),
    Check("no example is steeper than its layers allow", _refuse_steeper),
    Check("nothing of the inputs is kept", lambda bound, example: refuse_remembering(bound.model, example)),
)
