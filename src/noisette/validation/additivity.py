"""Two measured properties that say together that no record moves the sum by more than the bound.

The sum of one example alone is within the bound (S1), and the sum of a batch is the sum of its examples' own (S2). A
list of forbidden layers cannot see coupling inside a module of the user's; this can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from noisette.validation.probe_inputs import EXAMPLES, SEED, Call, batched, doubled, in_double, plain, public_batch, row

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}
_TOLERANCE_LOW_PRECISION = 5e-2
_MIXING_UNSEEN = (
    "some operation mixes examples in its gradient, or holds them on another axis than the first. "
    "Every operation must look at one example at a time, and inputs and outputs hold the examples on the first axis."
)


def check_additivity(bound: GradientBound, example: Call) -> None:
    """Both properties hold for inputs shaped like the example, unlike one another and all alike.

    Raises:
        PrivacyError: one does not.
    """
    with torch.random.fork_rng(), buffers_restored(bound.model) as put_back:
        torch.manual_seed(SEED)
        public = public_batch(example)
        _refuse_mixing(bound, public)
        # Equal examples want the same places and the same expert, and a state that has wandered off shows little.
        with _before_calls(bound.model, put_back):
            _refuse_mixing(bound, batched(public, lambda tensor: tensor[:1].expand_as(tensor).clone()))


def _refuse_mixing(bound: GradientBound, public: Call) -> None:
    problem = _problem(bound, public)
    if problem and _tolerance(bound.model) == _TOLERANCE[torch.float32]:
        # Alone and in a batch values are rounded differently, and then a maximum of two that nearly tie may change.
        with in_double(bound.model), suppress(RuntimeError):
            problem = _problem(bound, public.map(doubled))
    if problem:
        raise PrivacyError(problem)


def _problem(bound: GradientBound, public: Call) -> str:
    """What speaks against additivity, "" if it holds.

    Raises:
        PrivacyError: one example alone is above the bound, which no other precision excuses.
    """
    loss = _Projection()
    raw = [_singleton(bound, public, i, loss, 1.0) for i in range(EXAMPLES)]
    scale = _scale_to_bound(bound, public, loss, raw)
    singles = [_singleton(bound, public, i, loss, scale) for i in range(EXAMPLES)]
    together = _together(bound, public, loss, scale)
    tolerance = _tolerance(bound.model)
    for part in (part for single in singles for part in single):
        if not (moved := _norm(part)) <= part.bound * (1 + min(tolerance, 1e-5)):
            raise PrivacyError(
                f"one example alone moves the sum by {moved:.6g}, above the bound {part.bound:.6g}: the norm that "
                "was clipped is not the norm of what was added. Do not train with this model; it uses an operation "
                "in a way that its rule does not expect. engine=noisette.engines.PerExampleLoop() needs no rule."
            )
    apart = float((_joint_vector(together) - torch.stack([_joint_vector(s) for s in singles]).sum(0)).norm())
    if apart <= tolerance:
        return ""
    return (
        f"the sum of a batch differs from the sum of its examples by {apart:.3g} times the bound: "
        f"{locate_mixing_module(bound.model, public) or _MIXING_UNSEEN}"
    )


def _norm(part: BoundedSum) -> float:
    return float(torch.stack([g.double().norm() for g in part.grads]).norm())


def _joint_vector(sums: Sequence[BoundedSum]) -> Tensor:
    """All sums in units of their noise at multiplier one: an example that reaches every bound moves it by one."""
    scales = [math.sqrt(share) / part.bound for part, share in zip(sums, shares_of(sums), strict=True)]
    return torch.cat(
        [g.double().flatten() * scale for part, scale in zip(sums, scales, strict=True) for g in part.grads]
    )


def _tolerance(model: nn.Module) -> float:
    dtypes = {p.dtype for p in model.parameters()}
    if any(torch.is_autocast_enabled(device) for device in {p.device.type for p in model.parameters()}):
        return _TOLERANCE_LOW_PRECISION
    return max(_TOLERANCE.get(dtype, _TOLERANCE_LOW_PRECISION) for dtype in dtypes)


class _Projection:
    """A loss for a model whose loss is not known yet: each example's outputs times random numbers of its own.

    They stand for the example's label: a model that hands one example's output to another cannot hide.
    """

    def __init__(self) -> None:
        self._directions: dict[int, Tensor] = {}

    def __call__(self, output: object, examples: Sequence[int]) -> Tensor:
        """One loss for each of these examples, whose outputs these are."""
        b = len(examples)
        leaves = [leaf for leaf in tree_flatten(plain(output))[0] if isinstance(leaf, Tensor)]
        batched = [leaf for leaf in leaves if leaf.requires_grad and leaf.dim() and leaf.shape[0] % b == 0]
        if not batched:
            raise PrivacyError(
                "the model returns no tensor with the examples on its first axis, so it cannot be checked; "
                "return one row per example"
            )
        rows = [leaf.reshape(b, -1) for leaf in batched if leaf.numel()]
        return torch.stack([(row * self._directions_of(k, row)[examples]).sum(1) for k, row in enumerate(rows)]).sum(0)

    def _directions_of(self, k: int, rows: Tensor) -> Tensor:
        if k not in self._directions or self._directions[k].shape[1] != rows.shape[1]:
            with torch._C.DisableTorchFunction():
                self._directions[k] = torch.randn(EXAMPLES, rows.shape[1], dtype=rows.dtype, device=rows.device)
        return self._directions[k]


def _sums_of(
    bound: GradientBound, batch: Call, examples: Sequence[int], loss: _Projection, scale: float
) -> list[BoundedSum]:
    """What the bound hands on for this batch."""
    with torch.enable_grad():
        with DisableRandomness():
            output = bound.model(*batch.args, **batch.kwargs)
        losses = loss(output, examples) * scale
    with randomness_disabled_in_recomputation(bound.model):
        bound.backward(losses)
    return bound.pop_sums()


def _singleton(bound: GradientBound, batch: Call, i: int, loss: _Projection, scale: float) -> list[BoundedSum]:
    try:
        return _sums_of(bound, row(batch, i), [i], loss, scale)
    except ValueError as error:
        if "Expected more than 1" not in str(error):
            raise
        raise PrivacyError(
            f"the model cannot answer for one example alone: {error}. It takes statistics over the batch, which mixes "
            "examples; use a GroupNorm, or noisette.nn.PublicBatchNorm"
        ) from error


def _together(bound: GradientBound, batch: Call, loss: _Projection, scale: float) -> list[BoundedSum]:
    try:
        return _sums_of(bound, batch, range(EXAMPLES), loss, scale)
    except MissingRuleError as error:
        # Each example alone has passed, so what stands in the way is what they share.
        raise PrivacyError(locate_mixing_module(bound.model, batch) or f"{_MIXING_UNSEEN}\n{error}") from error


def _scale_to_bound(bound: GradientBound, batch: Call, loss: _Projection, raw: Sequence[list[BoundedSum]]) -> float:
    """A factor on the losses that puts half of the examples above the bound, where clipping shows, and none on it."""
    scale, reached = 1.0, [_reached(single) for single in raw]
    while max(reached) > 0.99 and scale > 1e-30:
        scale *= 1e-4
        reached = [_reached(_singleton(bound, batch, i, loss, scale)) for i in range(EXAMPLES)]
    reached = sorted(part for part in reached if part)
    if not reached:
        return 1.0
    middle = math.sqrt(reached[max(len(reached) // 2 - 1, 0)] * reached[len(reached) // 2])
    return scale * 1.01 / middle


def _reached(sums: Sequence[BoundedSum]) -> float:
    """How near a gradient of these comes to its bound."""
    return max(_norm(part) / part.bound for part in sums if part.name == "gradient")


@contextmanager
def _before_calls(model: nn.Module, do: Callable[[], None]) -> Iterator[None]:
    """Not before the repetition of a call by ``torch.func``, which may change nothing."""

    def first(module: nn.Module, args: Any) -> None:
        if not any(map(is_functorch_wrapped_tensor, module.parameters())):
            do()

    handle = model.register_forward_pre_hook(first, prepend=True)
    try:
        yield
    finally:
        handle.remove()
