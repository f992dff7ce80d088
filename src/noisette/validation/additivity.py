"""Two measured properties that together bound the sensitivity of the sum.

The sum of one example alone is within the bound (S1), and the sum of a batch is the sum over its examples alone (S2). A
list of forbidden layers would miss coupling inside the user's own modules; measuring finds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from torch.utils._pytree import tree_flatten

from noisette.errors import MissingRuleError, PrivacyError
from noisette.mechanisms.bounded_sum import BoundedSum, GradientBound
from noisette.mechanisms.gaussian import shares_of
from noisette.validation.buffers import buffers_restored
from noisette.validation.deterministic import DisableRandomness, randomness_disabled_in_recomputation
from noisette.validation.locate_module import locate_mixing_module
from noisette.validation.probe_inputs import (
    EXAMPLES,
    SEED,
    Call,
    as_dict,
    in_double,
    map_batched,
    public_batch,
    single_example,
    to_double,
)

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}
_TOLERANCE_LOW_PRECISION = 5e-2
_MIXING_UNSEEN = (
    "some operation mixes examples in its gradient, or has them on another axis than the first. "
    "Every operation must treat each example separately, with the examples on the first axis of inputs and outputs."
)


def check_additivity(bound: GradientBound, example: Call) -> None:
    """Both properties hold for inputs shaped like the example: for a batch of different examples, and of equal ones.

    Raises:
        PrivacyError: one of the properties does not hold.
    """
    model = bound.model

    def restore_before(module: nn.Module, args: Any) -> None:
        # torch.func repeats a call with wrapped parameters; during that no buffer may change.
        if not any(map(is_functorch_wrapped_tensor, module.parameters())):
            restore_buffers()

    with torch.random.fork_rng(), buffers_restored(model) as restore_buffers:
        torch.manual_seed(SEED)
        public = public_batch(example)
        _refuse_mixing(bound, public)
        # Equal examples compete for the same capacity, such as that of one expert. Each call starts from the same
        # buffers, because running statistics that have converged would hide the coupling.
        with model.register_forward_pre_hook(restore_before, prepend=True):
            _refuse_mixing(bound, map_batched(public, lambda tensor: tensor[:1].expand_as(tensor).clone()))


def _refuse_mixing(bound: GradientBound, public: Call) -> None:
    """Raise a ``PrivacyError`` if the properties do not hold for this batch."""
    problem = _problem(bound, public)
    if problem and _tolerance(bound.model) == _TOLERANCE[torch.float32]:
        # Rounding differs between a batch and one example, so the maximum of two nearly equal values may be another
        # one. Double precision decides, unless an operation of the model does not support it.
        with in_double(bound.model), suppress(RuntimeError):
            problem = _problem(bound, public.map(to_double))
    if problem:
        raise PrivacyError(problem)


def _problem(bound: GradientBound, public: Call) -> str:
    """How additivity (S2) fails for this batch; an empty string if it holds.

    Raises:
        PrivacyError: one example alone exceeds the bound (S1), which no difference of rounding explains.
    """
    probe = _Probe(bound, public)
    scale = probe.scale_to_bound(probe.sums_of_each(1.0))
    singles = probe.sums_of_each(scale)
    together = probe.sums_of_all(scale)
    tolerance = _tolerance(bound.model)
    for part in (part for single in singles for part in single):
        if not (norm := _norm(part)) <= part.bound * (1 + min(tolerance, 1e-5)):
            raise PrivacyError(
                f"one example alone moves the sum by {norm:.6g}, above the bound {part.bound:.6g}: the norm used for "
                "clipping is not the norm of the gradient that was added. Do not train with this model: it uses an "
                "operation in a way that its rule does not support. The engine noisette.engines.PerExampleLoop() needs "
                "no rule."
            )
    difference = float((_joint_vector(together) - torch.stack([_joint_vector(s) for s in singles]).sum(0)).norm())
    if difference <= tolerance:
        return ""
    return (
        f"the sum of a batch differs from the sum of its examples by {difference:.3g} times the bound: "
        f"{locate_mixing_module(bound.model, public) or _MIXING_UNSEEN}"
    )


def _norm(part: BoundedSum) -> float:
    return float(torch.stack([g.double().norm() for g in part.grads]).norm())


def _norm_over_bound(sums: Sequence[BoundedSum]) -> float:
    """The largest ratio of norm to bound among the gradient sums."""
    return max(_norm(part) / part.bound for part in sums if part.name == "gradient")


def _joint_vector(sums: Sequence[BoundedSum]) -> Tensor:
    """All sums as one vector, in units of their noise at noise multiplier one; its sensitivity is one."""
    scales = [math.sqrt(share) / part.bound for part, share in zip(sums, shares_of(sums), strict=True)]
    return torch.cat(
        [g.double().flatten() * scale for part, scale in zip(sums, scales, strict=True) for g in part.grads]
    )


def _tolerance(model: nn.Module) -> float:
    dtypes = {p.dtype for p in model.parameters()}
    if any(torch.is_autocast_enabled(device) for device in {p.device.type for p in model.parameters()}):
        return _TOLERANCE_LOW_PRECISION
    return max(_TOLERANCE.get(dtype, _TOLERANCE_LOW_PRECISION) for dtype in dtypes)


@dataclass(frozen=True)
class _Probe:
    """Bounded sums of a public batch and of its single examples; losses take a factor ``scale``.

    The loss replaces the user's, which is not known yet: each example's outputs times its own random direction. The
    directions stand for the labels. Because they differ, a model that swaps outputs of examples is detected.
    """

    bound: GradientBound
    batch: Call
    directions: dict[int, Tensor] = field(default_factory=dict)  # by index of the output, (examples, elements)

    def sums_of_each(self, scale: float) -> list[list[BoundedSum]]:
        """The bounded sums of each example of the batch alone.

        Raises:
            PrivacyError: the model needs more than one example.
        """
        try:
            return [self._sums(single_example(self.batch, i), [i], scale) for i in range(EXAMPLES)]
        except ValueError as error:
            if "Expected more than 1" not in str(error):
                raise
            raise PrivacyError(
                f"the model fails on a batch of one example: {error}. It computes statistics over the batch, which "
                "mixes examples; use GroupNorm or noisette.nn.PublicBatchNorm"
            ) from error

    def sums_of_all(self, scale: float) -> list[BoundedSum]:
        """The bounded sums of the whole batch.

        Raises:
            PrivacyError: the batch needs a rule that its single examples did not need, so the examples are coupled.
        """
        try:
            return self._sums(self.batch, range(EXAMPLES), scale)
        except MissingRuleError as error:
            named = locate_mixing_module(self.bound.model, self.batch)
            raise PrivacyError(named or f"{_MIXING_UNSEEN}\n{error}") from error

    def scale_to_bound(self, unscaled: Sequence[list[BoundedSum]]) -> float:
        """A factor on the losses with which about half of the examples exceed the bound and are clipped.

        ``unscaled`` are the sums of each example alone, without a factor. The losses are first scaled down until no
        example is clipped, which gives the true norms. Then the median of the norms is scaled to 1.01 times the bound,
        so that no norm is exactly at the bound, where rounding would decide.
        """
        scale, ratios = 1.0, [_norm_over_bound(single) for single in unscaled]
        while max(ratios) > 0.99 and scale > 1e-30:
            scale *= 1e-4
            ratios = [_norm_over_bound(single) for single in self.sums_of_each(scale)]
        ratios = sorted(ratio for ratio in ratios if ratio)
        if not ratios:
            return 1.0
        median = math.sqrt(ratios[max(len(ratios) // 2 - 1, 0)] * ratios[len(ratios) // 2])
        return scale * 1.01 / median

    def _sums(self, batch: Call, examples: Sequence[int], scale: float) -> list[BoundedSum]:
        """The bounded sums of these examples of the public batch, with random operations replaced by constants."""
        model = self.bound.model
        with torch.enable_grad():
            with DisableRandomness():
                output = model(*batch.args, **batch.kwargs)
            losses = self._losses(output, examples) * scale
        with randomness_disabled_in_recomputation(model):
            self.bound.backward(losses)
        return self.bound.pop_sums()

    def _losses(self, output: object, examples: Sequence[int]) -> Tensor:
        """One loss for each of these examples of the public batch, from the model's output for them.

        Raises:
            PrivacyError: the output has no tensor with the examples on its first axis.
        """
        b = len(examples)
        leaves = [leaf for leaf in tree_flatten(as_dict(output))[0] if isinstance(leaf, Tensor)]
        batched = [leaf for leaf in leaves if leaf.requires_grad and leaf.dim() and leaf.shape[0] % b == 0]
        if not batched:
            raise PrivacyError(
                "the model returns no tensor with the examples on its first axis, so it cannot be checked; "
                "return one row per example"
            )
        rows = [leaf.reshape(b, -1) for leaf in batched if leaf.numel()]
        return torch.stack([(row * self._directions_of(k, row)[examples]).sum(1) for k, row in enumerate(rows)]).sum(0)

    def _directions_of(self, k: int, rows: Tensor) -> Tensor:
        if k not in self.directions or self.directions[k].shape[1] != rows.shape[1]:
            with torch._C.DisableTorchFunction():
                self.directions[k] = torch.randn(EXAMPLES, rows.shape[1], dtype=rows.dtype, device=rows.device)
        return self.directions[k]
