"""Gradient norms, the clipping factor, the clipped sum, and the running sum of a batch."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from noisette.core import forms
from noisette.core.backward import per_example_gradients
from noisette.core.forms import AT_LEAST_SINGLE, ExampleGradients, Sums, compacted, weighted_sum_in_blocks
from noisette.core.release import BoundedSum
from noisette.core.trace import ForwardPass
from noisette.errors import PrivacyError

Factor = Callable[[Tensor], Tensor]  # norms (b,) -> factors (b,), each computed from its own norm alone

# Squares below the smallest normal number of single precision count as zero. A gradient of n numbers can lose a norm of
# 1e-19 sqrt(n) by that, which for 1e10 numbers is 1e-4 of this bound, and less than 1e-8 of a norm that exceeds it.
SMALLEST_BOUND = 1e-10


@dataclass(frozen=True)
class Count:
    """A count of the examples within their clipping norm, +1/2 or -1/2 each: a sum released beside the gradient."""

    released: Tensor  # its ``.grad`` will hold the noised count over the expected batch size
    share: float  # of the release's budget

    def twice(self, norms: Tensor, bound: float) -> Tensor:
        """+1 for each norm within the bound, -1 for each above it, nothing where the norm is not finite."""
        return torch.where(norms.isfinite(), torch.where(norms <= bound, 1, -1), 0).sum()

    def sum_of(self, twice: Tensor | None) -> BoundedSum:
        """The sum that is released, zero for ``None``."""
        total = (twice if twice is not None else torch.zeros(())).to(self.released) / 2
        return BoundedSum((self.released,), (total,), 0.5, self.share, "clipping count")


@dataclass(frozen=True)
class Group:
    """Parameters that are clipped together, and the most one example can move their sum."""

    names: tuple[str, ...]
    bound: float
    factor: Factor | None = None  # None: the factor is 1 for gradients within the bound
    count: Count | None = None

    def __post_init__(self) -> None:
        if not self.bound >= SMALLEST_BOUND:
            raise ValueError(
                f"expected a clipping norm of at least {SMALLEST_BOUND:g}, got {self.bound:g}: squares of smaller "
                "gradients are zero in single precision; multiply the losses and the bound with a constant"
            )


class ClippingRule(Protocol):
    """Chooses the factor that each example's gradient is multiplied with; no factor exceeds bound / norm."""

    def groups(self, names: Sequence[str]) -> list[Group]:
        """The groups of these parameters for the next batch, each in one; a ValueError if the rule does not fit."""
        ...


@runtime_checkable
class AdaptiveRule(Protocol):
    """A clipping rule whose bound follows the released count of the examples within it."""

    def adapt(self, released_count: Tensor) -> None:
        """Choose the bound of the next batch, by the noised count over the expected size; a tensor counts once."""


@dataclass(frozen=True)
class Clipping:
    """Which parameters an engine clips together, and by which factors: norms (groups, b) -> factors (groups, b)."""

    groups: Sequence[Group]  # each parameter in one
    other_factors: Callable[[Tensor], Tensor] | None = None  # than those of the groups, as a graph has them
    are_finite: bool = False  # whether these are finite even where a norm is not: then no example is to be cut out

    def factors(self, norms: Tensor) -> Tensor:
        return clipping_factors(self.groups, norms) if self.other_factors is None else self.other_factors(norms)


@dataclass(frozen=True)
class ClippedSum:
    """Sum of factor times gradient for each parameter the losses depend on, and the norms it was clipped by."""

    sums: Sums
    norms: Tensor  # (groups, b)


def together(parts: Iterable[ClippedSum]) -> ClippedSum:
    """The clipped sum of examples that were computed in parts, which are used up; norms are in their order."""
    sums: Sums = {}
    norms: list[Tensor] = []
    for part in parts:
        norms.append(part.norms)
        for name, total in part.sums.items():
            sums[name] = sums[name].add_(total) if name in sums else total.double()
    return ClippedSum(sums, torch.cat(norms, 1))


class Engine(Protocol):
    """A way to compute the clipped sum of a vector of losses."""

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        """Sum of factor times gradient over the examples.

        Guarantee: an example whose gradient norm is not finite contributes exactly nothing.
        """
        ...


def group_norms(squared: Mapping[str, Tensor], groups: Sequence[Group], losses: Tensor) -> Tensor:
    """The norm of each example's gradient in each group, shape (groups, b), in single precision at least."""
    group = group_of(groups)
    parts: list[list[Tensor]] = [[] for _ in groups]
    for name, of_parameter in squared.items():
        parts[group[name]].append(of_parameter)
    # The norms have the precision of the least precise gradient.
    dtypes = {AT_LEAST_SINGLE.get(of_parameter.dtype, of_parameter.dtype) for of_parameter in squared.values()}
    dtype = torch.float64 if dtypes == {torch.float64} else torch.float32
    with torch.no_grad():
        nothing = losses.new_zeros(losses.shape[0], dtype=torch.float64)
        sums = [torch.stack(part).sum(0, dtype=torch.float64) if part else nothing for part in parts]
        return torch.stack(sums).sqrt_().to(dtype)


def clipping_factors(groups: Sequence[Group], norms: Tensor) -> Tensor:
    """What each gradient is multiplied with, norms (groups, b) -> factors (groups, b): for norm 5 and bound 1, by 0.2.

    Guarantee: factor times norm is at most the group's bound; the factor is not a number where the norm is not finite.
    Source: Lee & Kifer 2020, eq. 2.
    """
    return factors_within(bounds_of(tuple([group.bound for group in groups]), norms.device), groups, norms)


@lru_cache(maxsize=64)  # so that no microbatch but the first copies them to a GPU
def bounds_of(bounds: tuple[float, ...], device: torch.device) -> Tensor:
    """The bounds of the groups in double precision, (groups, 1); shared, so that nobody may write into them."""
    with torch.inference_mode(mode=False):
        return torch.tensor([[bound] for bound in bounds], dtype=torch.float64).to(device)


def may_wait(device: torch.device) -> bool:
    """Whether the host may read what the device has computed: a GPU would have nothing to do while it waits."""
    return device.type == "cpu"


def factors_within(bounds: Tensor, groups: Sequence[Group], norms: Tensor) -> Tensor:
    """:func:`clipping_factors` for bounds that are given as a tensor, (groups, 1)."""
    precise = norms.double()
    factors = bounds / precise
    for factor, group, row in zip(factors.unbind(), groups, precise.unbind(), strict=True):
        factor.clamp_(max=1 if group.factor is None else group.factor(row).detach().to(row).clamp(min=0))
    return factors.masked_fill_(~(precise < math.inf), math.nan).to(norms.dtype)


def clip_and_sum(gradients: dict[str, ExampleGradients], losses: Tensor, clipping: Clipping) -> ClippedSum:
    """The clipped sum of per-example gradients by parameter, which are used up."""
    with torch.no_grad():
        norms = group_norms(forms.squared_norms(gradients), clipping.groups, losses)
        factors = Factors.of(clipping, norms)
        # Each is freed before the next.
        sums = {name: factors.sum_of(name, gradients.pop(name)) for name in list(gradients)}
    return ClippedSum(sums, norms)


@dataclass(frozen=True)
class Factors:
    """The clipping factors of the examples, for each parameter; an example without a finite one is left out.

    It is cut out, or where the host cannot wait for the factors another one takes its place, with the factor zero: zero
    times a gradient that is not a number would not be zero.
    """

    rows: Sequence[Tensor]  # for each group the factors of the kept examples
    group: Mapping[str, int]  # the number of each parameter's group
    kept: Tensor | None  # indices of the kept examples; all of them for ``None``
    some: Tensor | None = None  # whether any example is finite; ``None`` where that does not matter

    @classmethod
    def of(cls, clipping: Clipping, norms: Tensor) -> Self:
        """The factors that clip gradients with these norms, (groups, b)."""
        factors, group = clipping.factors(norms), group_of(clipping.groups)
        if clipping.are_finite:
            return cls(factors.unbind(), group, None)
        if not may_wait(factors.device):
            finite = factors.isfinite().all(0)
            places = torch.arange(len(finite), device=finite.device)
            kept = torch.where(finite, places, finite.to(torch.uint8).argmax())
            return cls(torch.where(finite, factors, 0).unbind(), group, kept, finite.any())
        if math.isfinite(factors.sum()):
            return cls(factors.unbind(), group, None)
        kept = factors.isfinite().all(0).nonzero().flatten()
        return cls(factors[:, kept].unbind(), group, kept)

    def sum_of(self, name: str, form: ExampleGradients, scale: Tensor | None = None) -> Tensor:
        """The clipped sum of a parameter's gradients, each also multiplied by its ``scale``, (b,), if one is given."""
        row = self.rows[self.group[name]]
        if scale is not None:
            row = row * (scale if self.kept is None else scale[self.kept]).to(row)
        total = weighted_sum_in_blocks(form, row, self.kept)
        return total if self.some is None else torch.where(self.some, total, 0)


def group_of(groups: Sequence[Group]) -> dict[str, int]:
    """The number of each parameter's group."""
    return {name: k for k, group in enumerate(groups) for name in group.names}


class BookKeeping:
    """The default: one backward pass over activations, then norms and the clipped sum from the gradients of the rules.

    Source: Bu et al. 2022 (book-keeping); norms as in Lee & Kifer 2020, section 5.
    """

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        return clip_and_sum(per_example_gradients(forward, parameters, compacted), forward.losses, clipping)


class Accumulator:
    """Sums by parameter name, added to microbatch by microbatch.

    The microbatches of a batch are added in double precision, so that their order and number hardly matter. A sum is
    never rounded to half precision, whatever the dtype of its parameter.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}  # a tensor of ``_doubles``, or what the only microbatch so far gave
        self._doubles: dict[str, Tensor] = {}  # of this batch
        self._is_whole = True  # no addition ended half-way

    def __bool__(self) -> bool:
        return bool(self._sums)

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add the sums of one microbatch, all of them or, where memory runs out, none."""
        self._check_whole()
        missing = [name for name in sums if name in self._sums and self._sums[name] is not self._doubles.get(name)]
        made = {name: torch.empty_like(sums[name], dtype=torch.float64) for name in missing}
        single = {name: sum.to(AT_LEAST_SINGLE.get(sum.dtype, sum.dtype)) for name, sum in sums.items()}
        # The memory is allocated, so nothing can fail from here on but for an interrupt.
        self._is_whole = False
        self._doubles |= made
        for name in missing:
            self._sums[name] = self._doubles[name].copy_(self._sums[name])
        for name, sum in single.items():
            if name in self._sums:
                _add(self._sums[name], sum)
            else:
                self._sums[name] = sum
        self._is_whole = True

    def pop_sums(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums of these parameters, zeros where there is none; then start again from nothing."""
        self._check_whole()
        sums, self._sums, self._doubles = self._sums, {}, {}
        return {
            name: sums[name] if name in sums else torch.zeros_like(p, dtype=AT_LEAST_SINGLE.get(p.dtype, p.dtype))
            for name, p in parameters.items()
        }

    def _check_whole(self) -> None:
        """Check that no addition was interrupted; the sums start again from nothing where one was."""
        if not self._is_whole:
            self._sums, self._doubles, self._is_whole = {}, {}, True
            raise PrivacyError(
                "the sum of this batch holds a part of a microbatch, whose adding was interrupted; begin the batch anew"
            )


def _add(total: Tensor, sum: Tensor) -> None:
    """Add a sum to one in double precision; on a processor torch would copy all of it to do that."""
    if sum.device.type == "cpu":
        np.add(total.numpy(), sum.detach().numpy(), out=total.numpy())
    else:
        total.add_(sum)
