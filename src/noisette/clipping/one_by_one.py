"""The clipped sum of a loss that cannot be vectorised: one example after the other, each alone."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from noisette.capture.python_state import PythonState
from noisette.clipping.norms import ClippedSum, Clipping, Sums, group_norms, group_of
from noisette.errors import MissingRuleError, PrivacyError
from noisette.gradients.one_by_one import gradients_one_by_one
from noisette.gradients.outside_tensors import OutsideTensors
from noisette.gradients.per_example import UncoveredError
from noisette.gradients.rules import Dense
from noisette.gradients.rules.forms import AT_LEAST_SINGLE
from noisette.gradients.vectorized import Loss, Microbatch
from noisette.gradients.vectorized_errors import VectorizationError, VectorizationWarning


class OneByOne:
    """The losses that cannot be vectorised, and their clipped sums.

    Args:
        model: given to the losses.
        outside: the tensors from outside that losses have used.
    """

    def __init__(self, model: nn.Module, outside: OutsideTensors) -> None:
        self._model = model
        self._outside = outside
        self._state = PythonState(model)
        self._codes: set[Any] = set()

    def is_needed(self, loss: Loss) -> bool:
        """Whether it was found that this loss cannot be vectorised."""
        return _code(loss) in self._codes

    def is_needed_from_now_on(self, loss: Loss, error: Exception) -> None:
        """This loss cannot be vectorised, for this reason."""
        self._codes.add(_code(loss))
        reason = (str(error).splitlines() or [type(error).__name__])[0].partition(". ")[0]
        warnings.warn(
            f"{reason}. The examples are computed one after the other instead: the sum is exact, and takes up to as "
            "many times longer as a microbatch has examples",
            VectorizationWarning,
            stacklevel=5,
        )

    def clipped_sum(
        self,
        loss: Loss,
        batch: Microbatch,
        parameters: Mapping[str, Tensor],
        clipping: Clipping,
        public: tuple[Tensor, ...],
    ) -> ClippedSum:
        """The clipped sum of a microbatch, added up in double precision; examples that are not finite are left out."""
        group, norms = group_of(clipping.groups), list[Tensor]()
        total: Sums = {}
        arguments = [value for value in (*batch.args, *batch.kwargs.values()) if not isinstance(value, Tensor)]
        state = partial(self._state.of, loss, *arguments)
        for gradients in gradients_one_by_one(loss, self._model, parameters, batch, self._outside, public, state):
            squared = {name: Dense(g.unsqueeze(0)).squared_norms() for name, g in gradients.items()}
            norms.append(group_norms(squared, clipping.groups, batch.tensors[0].new_zeros(1, dtype=torch.float32)))
            factors = clipping.factors(norms[-1])
            if not factors.isfinite().all():
                continue
            for name, g in gradients.items():
                clipped = g.to(AT_LEAST_SINGLE.get(g.dtype, g.dtype)) * factors[group[name], 0]
                total[name] = total[name].add_(clipped) if name in total else clipped.double()
        return ClippedSum(total, torch.cat(norms, 1))


def may_go_alone(error: Exception) -> bool:
    """Whether an example alone may do what the vectorised loss could not: what is not private there is not here."""
    if isinstance(error, PrivacyError):
        return isinstance(error, VectorizationError | MissingRuleError | UncoveredError)
    return not isinstance(error, torch.OutOfMemoryError)


def _code(loss: Loss) -> Any:
    """What tells one loss from another: a function may be made anew in each call, from the same code."""
    return getattr(loss, "__code__", loss)
