"""Per-example gradients of a convolution kernel.

No single plan is the fastest for every shape, so there are several exact ones. The first use of a shape measures them
and keeps the fastest:

- explicit gradients (`explicit_kernels.py`), kept where they are no larger than their factors, else computed in parts
  of the batch and dropped once their norms are known;
- norms from Gram matrices over positions (`kernel_grams.py`): only for few output positions.

The weighted sum comes from explicit gradients that were kept, else from one weight gradient of the backend.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from noisette.core.forms import Dense, ExampleGradients, compact, examples_at_once, scale_rows
from noisette.rules.autotune import fastest, operations_are_few
from noisette.rules.explicit_kernels import EXPLICIT_PLANS, Explicit, few_operations_plans
from noisette.rules.kernel_factors import KernelFactors, backend_gradient
from noisette.rules.kernel_grams import GRAM_PLANS, Norms

# Explicit gradients replace their factors when they need at most this many times the memory of the factors.
_KEEP_EXPLICIT = 1
# The same where operations are few.
_KEEP_IN_A_GRAPH = 3
# Explicit gradients of at most this many elements may replace their factors whatever their sizes, where that is faster.
_SMALL = 2**22
# Below this many examples nothing is measured.
_MEASURED_FROM = 16
# Where operations are few: temporary elements of a part of the batch in multiples of the whole batch's factors, and the
# number of parts.
_PART, _PARTS = 2, 4


@dataclass(frozen=True)
class KernelGradients(KernelFactors):
    """G_(o,c,u) = sum_p dy_(o,p) x_(c, stride p + dilation u - padding), for output position p and kernel offset u."""

    @property
    def has_few_positions(self) -> bool:
        """Gram matrices over positions are no larger than the gradients; where they are larger, they never pay off."""
        return self.geometry.groups * self.positions**2 <= self.weight.numel()

    @property
    def affordable(self) -> int:
        """Number of temporary elements per example that a plan may need: that of the gradient, or of the factors.

        A patch embedding of kernel and stride 16 on images of 224 x 224 would take a Gram matrix of pixels of 10 GB.
        """
        return max(self.weight.numel(), _SMALL, self.size_of_an_example)

    def squared_norms(self) -> Tensor:
        if len(self.x) == 0:
            return self.dy.new_zeros(0)
        plans = plans_of_few_parts(self) if operations_are_few() else plans_of_small_parts(self)
        return _fastest_plan(self, plans, lambda plan: plan(self))(self)

    def explicit(self) -> Tensor:
        return written(next(iter(explicit_plans(self).values())), self).gradients

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return backend_gradient(self.x, scale_rows(self.dy, weights), self.geometry).view(self.weight)


Plan = TypeVar("Plan")


def explicit_plans(form: KernelGradients) -> dict[str, Explicit]:
    """The plans for explicit gradients of the whole batch whose temporary memory is affordable."""
    if operations_are_few():
        return {name: plan for name, (plan, _) in _affordable_in_few_parts(form, few_operations_plans(form)).items()}
    unfolds = form.unfolded_size <= form.affordable
    return {name: plan for name, plan in EXPLICIT_PLANS.items() if name != "unfold" or unfolds}


def plans_of_small_parts(form: KernelGradients) -> dict[str, Norms]:
    """The plans for norms, over parts of the batch of little temporary memory."""
    size = form.weight.numel()
    plans: dict[str, Norms] = {}
    if form.has_few_positions:
        sizes = {name: gram_size(form) for name, (_, gram_size) in GRAM_PLANS.items()}
        fitting = [name for name in GRAM_PLANS if sizes[name] <= form.affordable]
        plans = {name: _in_parts(GRAM_PLANS[name][0], sizes[name]) for name in fitting}
    for name, plan in explicit_plans(form).items():
        plans[f"{name}, dropped"] = _in_parts(partial(dropped, plan), size)
    return plans


def plans_of_few_parts(form: KernelGradients) -> dict[str, Norms]:
    """The plans for norms over at most ``_PARTS`` parts of the batch, however many examples it has."""
    plans: dict[str, tuple[Norms, int]] = {}
    if form.has_few_positions:
        plans = {name: (norms, gram_size(form)) for name, (norms, gram_size) in GRAM_PLANS.items()}
    for name, (plan, size) in few_operations_plans(form).items():
        plans[f"{name}, dropped"] = partial(dropped, plan), size
    fitting = _affordable_in_few_parts(form, plans)
    return {name: _in_few_parts(norms, size) for name, (norms, size) in fitting.items()}


def _affordable_in_few_parts(
    form: KernelGradients, plans: Mapping[str, tuple[Plan, int]]
) -> dict[str, tuple[Plan, int]]:
    """The plans whose temporary elements per example are a few times those of the factors, or the smallest plan."""
    most = max(_PARTS * _PART * form.size_of_an_example, min(size for _, size in plans.values()))
    return {name: (plan, size) for name, (plan, size) in plans.items() if size <= most}


@compact.register
def _(form: KernelGradients) -> ExampleGradients:
    """Written out where that takes no more memory than the factors, unless Gram matrices are faster."""
    explicit_size = len(form.x) * form.weight.numel()
    keep = _KEEP_IN_A_GRAPH if operations_are_few() else _KEEP_EXPLICIT
    if explicit_size > max(keep * form.factors_size, _SMALL):
        return form
    plans: dict[str, Callable[[KernelGradients], ExampleGradients]] = {}
    if form.has_few_positions or explicit_size > _KEEP_EXPLICIT * form.factors_size:
        plans["factors"] = lambda form: form
    for name, plan in explicit_plans(form).items():
        plans[f"{name}, kept"] = partial(written, plan)

    def rehearse(plan: Callable[[KernelGradients], ExampleGradients]) -> None:
        gradients = plan(form)
        gradients.weighted_sum(gradients.squared_norms())

    return _fastest_plan(form, plans, rehearse)(form)


def _fastest_plan(form: KernelGradients, plans: Mapping[str, Plan], rehearse: Callable[[Plan], object]) -> Plan:
    """The plan whose ``rehearse`` was fastest for this shape; the first where the batch is too small to measure."""
    if len(form.x) < _MEASURED_FROM:
        return next(iter(plans.values()))
    key = (tuple(plans), form.geometry, len(form.x).bit_length(), form.x.shape[1:], form.dy.shape[1:], form.x.dtype)
    return plans[fastest(key, {name: partial(rehearse, plan) for name, plan in plans.items()}, form.x.device)]


def written(plan: Explicit, form: KernelFactors) -> Dense:
    """The explicit gradients, which replace their factors."""
    return Dense(plan(form).view(len(form.x), *form.weight))


def dropped(plan: Explicit, form: KernelFactors) -> Tensor:
    """Squared norms (b,) of explicit gradients, which are dropped."""
    return written(plan, form).squared_norms()


def _in_parts(norms: Norms, size: int) -> Norms:
    """The same norms, computed over parts of the batch; ``size`` is the number of temporary elements per example."""

    def over_parts(form: KernelFactors) -> Tensor:
        return torch.cat([norms(part) for part in form.split(examples_at_once(size, form.factors_size))])

    return over_parts


def _in_few_parts(norms: Norms, size: int) -> Norms:
    """The same, in a number of parts that depends on the shape of an example alone."""

    def over_parts(form: KernelFactors) -> Tensor:
        parts = min(_PARTS, math.ceil(size / (_PART * form.size_of_an_example)))
        found = [norms(part) for part in form.split(math.ceil(len(form.x) / parts))]
        return found[0] if len(found) == 1 else torch.cat(found)

    return over_parts
