"""Two measured properties that together bound the sensitivity of the sum.

The sum of one example alone is within the bound (S1), and the sum of a batch is the sum over its examples alone (S2). A
list of forbidden layers would miss coupling inside the user's own modules; measuring finds it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

from noisette._internal.random_state import seed_torch
from noisette.core.release import BoundedSum, DerivedBound, GradientBound, shares_of
from noisette.errors import MissingRuleError, PrivacyError, first_few
from noisette.validation.buffers import buffers_restored
from noisette.validation.deterministic import (
    EXTREME_LEVELS,
    LEVELS,
    DisableRandomness,
    randomness_disabled_in_recomputation,
)
from noisette.validation.double_precision import in_double, to_double, weights_drawn_anew
from noisette.validation.locate_module import locate_mixing_module
from noisette.validation.probe_inputs import (
    EXAMPLES,
    SEED,
    Call,
    first_examples,
    map_batched,
    output_tensors,
    public_batch,
    single_example,
)
from noisette.validation.seeded_randomness import own_generators, randomness_seeded
from noisette.validation.usable_inputs import GIVE_AN_EXAMPLE

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}
_TOLERANCE_LOW_PRECISION = 5e-2
_FEW = 3  # examples of a batch beyond the first
_FACTORS = (1.0, 10.0, 100.0)  # by which weights are changed for parameters that had no gradient
_MIXING_UNSEEN = (
    "some operation mixes examples in its gradient, or has them on another axis than the first. "
    "Every operation must treat each example separately, with the examples on the first axis of inputs and outputs."
)


def check_additivity(bound: GradientBound, example: Call) -> None:
    """Both properties hold for inputs shaped like the example: for a batch of different examples, and of equal ones.

    Random operations are constants at several levels. Parameters without a finite gradient other than zero are checked
    with inputs of the other kinds, and then with other weights.

    Raises:
        PrivacyError: one of the properties does not hold, or no gradient was found with which they could be checked.
    """
    with _untouched(bound) as seed:
        _refuse_excess(_Probe(bound, public_batch(example), seed))
        if isinstance(bound, DerivedBound):  # a bound of the current weights, which are not to be cast
            _check_all(bound, example, seed)
            return
        try:
            with in_double(bound.model):
                _check_all(bound, _doubled(example), seed)
        except PrivacyError:
            raise
        except Exception:  # the model does not support double precision; its code may raise anything
            _check_all(bound, example, seed)


@contextmanager
def _untouched(bound: GradientBound) -> Iterator[Any]:
    """Nothing of the bound, the model's buffers or the sources of randomness is different afterwards.

    Yields:
        A function that puts all sources of randomness into one state.
    """
    model = bound.model
    with randomness_seeded(model) as seed, buffers_restored(model) as restore_buffers, bound.set_aside():

        def restore_before(module: nn.Module, args: Any) -> None:
            # torch.func repeats a call with wrapped parameters; during that no buffer may change. Each call starts from
            # the same buffers, because running statistics that have converged would hide the coupling.
            if not any(map(is_functorch_wrapped_tensor, module.parameters())):
                restore_buffers()

        seed_torch(SEED)
        with model.register_forward_pre_hook(restore_before, prepend=True):
            yield seed


def _doubled(example: Call) -> Call:
    public = example.public.map(to_double) if example.public is not None else None
    return replace(example, public=public).map(to_double)


def _check_all(bound: GradientBound, example: Call, seed: Any) -> None:
    """Check batches until every trainable parameter that the losses depend on had a gradient."""
    public = public_batch(example)
    first = _Probe(bound, public, seed, LEVELS[0])
    first.check()
    # Equal examples compete for the same capacity, such as that of one expert.
    equal = map_batched(public, lambda tensor: tensor[:1].expand_as(tensor).clone())
    _Probe(bound, equal, seed, LEVELS[0], scale=first.scale).check()
    proven, reached = set(first.proven), first.reached
    if first.random:
        # At the usual levels a random mask may hide nothing, or everything, so that there is no gradient.
        for level in (*LEVELS[1:], *(EXTREME_LEVELS if not first.proven else ())):
            probe = _Probe(bound, first_examples(public, _FEW), seed, level)
            probe.check()
            proven, reached = proven | probe.proven, reached | probe.reached
    for batch, context in _further_batches(bound, example):
        if reached <= proven:
            return
        with context:
            probe = _Probe(bound, batch(), seed, LEVELS[1])
            probe.check()
        proven |= probe.proven
    _report_unproven(bound, reached, proven)


def _further_batches(bound: GradientBound, example: Call) -> Iterator[Any]:
    """Batches of the other kinds of inputs, and then of the best two with other weights, each with its context."""
    for kind in example.kinds[1:]:
        yield (lambda kind=kind: public_batch(example, _FEW, kind)), ExitStack()
    if not isinstance(bound, DerivedBound):  # its bound is that of the current weights
        for factor in _FACTORS:
            for kind in example.kinds[:2]:
                context = weights_drawn_anew(bound.model, factor)
                yield (lambda kind=kind: public_batch(example, _FEW, kind)), context


def _report_unproven(bound: GradientBound, reached: set[int], proven: set[int]) -> None:
    """Raise a ``PrivacyError`` if no weight had a finite gradient other than zero; warn where some had none.

    Rare experts and parts that are multiplied by zero are harmless and may be left over. The gradient of an offset
    says little: it does not depend on what comes before.
    """
    weights = {id(p) for p in bound.parameters.values() if p.dim() > 1} & reached or reached
    left = [name for name, p in bound.parameters.items() if id(p) in reached - proven]
    if not left:
        return
    listed = first_few(left)
    if not weights & proven:
        raise PrivacyError(
            f"the preflight found no public inputs that give a finite gradient other than zero in {listed}, so nothing "
            f"is known about how the model treats examples. {GIVE_AN_EXAMPLE}"
        )
    warnings.warn(
        f"the preflight found no public inputs with a gradient in {listed}, so it has not checked what they do. "
        f"{GIVE_AN_EXAMPLE}, or freeze what is not trained (requires_grad_(False))",
        stacklevel=2,
    )


def _said_of_generators(model: nn.Module) -> str:
    """What a model may do that has generators of its own; empty for another one."""
    if not (names := own_generators(model)):
        return ""
    return (
        f" If the difference comes from the numbers of {', '.join(names)}: a generator of NumPy or Python gives an "
        "example other numbers in a batch than alone; draw from torch, by the functions of numpy.random or random "
        "themselves, or use run.accumulate."
    )


def _refuse_excess(probe: _Probe) -> None:
    """Check in the precision of the training that one example alone is within the bound (S1)."""
    probe.check_alone(range(min(_FEW, probe.examples)))


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


@dataclass
class _Probe:
    """Bounded sums of a public batch and of its single examples; losses take a factor ``scale``.

    The loss replaces the user's, which is not known yet: each example's outputs times its own random direction. The
    directions stand for the labels. Because they differ, a model that swaps outputs of examples is detected.
    """

    bound: GradientBound
    batch: Call
    seed: Any  # puts all sources of randomness into one state
    level: float | None = 0.5
    scale: float = 0.0  # a factor on the losses with which about half of the examples are clipped; found if zero
    directions: dict[int, Tensor] = field(default_factory=dict)  # by index of the output, (examples, elements)
    proven: set[int] = field(default_factory=set)  # ids of parameters with a finite gradient other than zero
    reached: set[int] = field(default_factory=set)  # ids of parameters that the losses depend on
    random: bool = False  # whether the model called anything random

    @property
    def examples(self) -> int:
        return self.batch.examples or EXAMPLES

    def check(self) -> None:
        """Check both properties.

        Raises:
            PrivacyError: one does not hold.
        """
        singles = self.check_alone(range(self.examples))
        together = self._sums_of_all(self.scale)
        apart = torch.stack([_joint_vector(sums) for sums in singles]).sum(0)
        difference = float((_joint_vector(together) - apart).norm())
        if not difference <= _tolerance(self.bound.model):
            raise PrivacyError(
                f"the sum of a batch differs from the sum of its examples by {difference:.3g} times the bound: "
                f"{locate_mixing_module(self.bound.model, self.batch) or _MIXING_UNSEEN}"
                f"{_said_of_generators(self.bound.model)}"
            )

    def check_alone(self, examples: Sequence[int]) -> list[list[BoundedSum]]:
        """The sums of these examples alone, about half of them clipped, after checking that each is within its bound.

        Raises:
            PrivacyError: one is not.
        """
        self.scale = self.scale or self._scale_to_bound()
        singles = [self._sums(single_example(self.batch, i), [i], self.scale) for i in examples]
        limit = 1 + min(_tolerance(self.bound.model), 1e-5)
        for part in (part for single in singles for part in single):
            if not (norm := _norm(part)) <= part.bound * limit:
                raise PrivacyError(
                    f"one example alone moves the sum by {norm:.6g}, above the bound {part.bound:.6g}: the norm used "
                    "for clipping is not the norm of the gradient that was added. Do not train with this model: it "
                    "uses an operation in a way that its rule does not support. The engine "
                    "noisette.engines.PerExampleLoop() needs no rule."
                )
            self.proven |= {
                id(p) for p, g in zip(part.params, part.grads, strict=True) if g.isfinite().all() and g.any()
            }
        return singles

    def _sums_of_all(self, scale: float) -> list[BoundedSum]:
        """The bounded sums of the whole batch.

        Raises:
            PrivacyError: the batch needs a rule that its single examples did not need, so the examples are coupled.
        """
        try:
            return self._sums(self.batch, range(self.examples), scale)
        except MissingRuleError as error:
            named = locate_mixing_module(self.bound.model, self.batch)
            raise PrivacyError(named or f"{_MIXING_UNSEEN}\n{error}") from error

    def _scale_to_bound(self) -> float:
        """A factor on the losses with which about half of the examples exceed the bound and are clipped.

        The losses of a few examples are first scaled down until none is clipped, which gives the true norms. Then the
        median of the norms is scaled to 1.01 times the bound, so that no norm is exactly at the bound, where rounding
        would decide.
        """
        few = range(min(_FEW, self.examples))
        scale, ratios = 1.0, [math.inf]
        while max(ratios) > 0.99 and scale > 1e-30:
            alone = [self._sums(single_example(self.batch, i), [i], scale) for i in few]
            ratios = [_norm_over_bound(sums) for sums in alone]
            scale *= 1e-4 if max(ratios) > 0.99 else 1.0
        known = sorted(ratio for ratio in ratios if ratio)
        return scale * 1.01 / known[len(known) // 2] if known else 1.0

    def _sums(self, batch: Call, examples: Sequence[int], scale: float) -> list[BoundedSum]:
        """The bounded sums of these examples of the public batch, with random operations replaced by constants."""
        model = self.bound.model
        with torch.enable_grad():
            self.seed()
            with DisableRandomness(self.level) as constants:
                output = model(*batch.args, **batch.kwargs)
            self.random |= constants.used
            if constants.used and not any(leaf.requires_grad for leaf in output_tensors(output)):
                return self.bound.pop_sums()  # every layer is left out at this level
            losses = self._losses(output, examples) * scale
            if not self.reached:
                self.reached = _reached(losses)
        with randomness_disabled_in_recomputation(model, self.level):
            self.bound.backward(losses)
        return self.bound.pop_sums()

    def _losses(self, output: object, examples: Sequence[int]) -> Tensor:
        """One loss for each of these examples of the public batch, from the model's output for them.

        Raises:
            PrivacyError: the output has no tensor with the examples on its first axis.
        """
        b = len(examples)
        leaves = output_tensors(output)
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
            generator = torch.Generator().manual_seed(SEED + k)
            with torch._C.DisableTorchFunction():
                drawn = torch.randn(self.examples, rows.shape[1], generator=generator, dtype=torch.float64)
                self.directions[k] = drawn.to(rows)
        return self.directions[k]


def _reached(losses: Tensor) -> set[int]:
    """The ids of the parameters that the graph of the losses ends in."""
    found: set[int] = set()
    seen: set[Any] = set()
    stack = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack += [child for child, _ in node.next_functions]
        if (variable := getattr(node, "variable", None)) is not None:
            found.add(id(variable))
    return found
