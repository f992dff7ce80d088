"""Residual branches, concatenation, and multiplication by a constant."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from noisette.lipschitz import propagation
from noisette.lipschitz.protocols import NormBound, Sensitivities


class Scale(nn.Module):
    """Multiplies by a constant.

    Raises:
        ValueError: the constant is not finite.

    >>> Scale(-2.0).bound_forward(NormBound(3.0, (5,))).norm
    6.0
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        _require_finite(factor=factor)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(abs(self.factor) * x.norm, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return abs(self.factor) * g, {}

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


class LipschitzResidual(nn.Module):
    """``a x + c branch(x)``: by default a mean, which is 1-Lipschitz if the branch is.

    Args:
        branch: a module with outputs of the same shape as its inputs.
        a: factor of the input.
        c: factor of the branch.

    Source: Bethune et al. 2024, appendix ("1-Lipschitz addition").

    Raises:
        ValueError: a factor is not finite, or (when bounds are computed) the branch changes the shape.

    >>> from noisette.nn.lipschitz import Abs
    >>> LipschitzResidual(Abs())(torch.tensor([[2.0, -2.0]])).tolist()
    [[2.0, 0.0]]
    """

    def __init__(self, branch: nn.Module, a: float = 0.5, c: float = 0.5) -> None:
        super().__init__()
        _require_finite(a=a, c=c)
        self.branch = branch
        self.a = a
        self.c = c

    def forward(self, x: Tensor) -> Tensor:
        return self.a * x + self.c * self.branch(x)

    def bound_forward(self, x: NormBound) -> NormBound:
        inner = propagation.forward(self.branch, x)
        if inner.shape != x.shape:
            raise ValueError(f"the branch of a residual must keep the shape, but turns {x.shape} into {inner.shape}")
        return NormBound(abs(self.a) * x.norm + abs(self.c) * inner.norm, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        inner, sensitivities = propagation.backward(self.branch, x, abs(self.c) * g)
        return abs(self.a) * g + inner, sensitivities

    def extra_repr(self) -> str:
        return f"a={self.a:g}, c={self.c:g}"


class LipschitzConcat(nn.Module):
    """The outputs of several branches on the same input, concatenated along axis 1.

    Source: squared norms of parts add up, so the concatenation of two 1-Lipschitz branches is sqrt(2)-Lipschitz.

    Raises:
        ValueError: there is no branch, or (when bounds are computed) their shapes differ beyond axis 1.

    >>> from noisette.nn.lipschitz import Abs
    >>> LipschitzConcat([nn.Identity(), Abs()])(torch.tensor([[-1.0]])).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(self, branches: Iterable[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        if not self.branches:
            raise ValueError("LipschitzConcat needs at least one branch, got none")

    def forward(self, x: Tensor) -> Tensor:
        # A branch that writes in place would change the input of those behind it.
        writes = any(getattr(module, "inplace", False) for module in self.branches.modules())
        return torch.cat([branch(x.clone() if writes else x) for branch in self.branches], 1)

    def bound_forward(self, x: NormBound) -> NormBound:
        parts = [propagation.forward(branch, x) for branch in self.branches]
        if len({part.shape[1:] for part in parts}) > 1 or not parts[0].shape:
            raise ValueError(f"outputs of shapes {[part.shape for part in parts]} cannot be concatenated along axis 1")
        norm = math.hypot(*(part.norm for part in parts))
        return NormBound(norm, (sum(part.shape[0] for part in parts), *parts[0].shape[1:]))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        # Each branch gets its part g_i of the gradient, and the input gets sum J_i' g_i. Its norm is at most
        # sum L_i |g_i| <= sqrt(sum L_i^2) g by Cauchy-Schwarz; a branch's own parameters see at most |g_i| <= g.
        found = [propagation.backward(branch, x, g) for branch in self.branches]
        return math.hypot(*(inner for inner, _ in found)), propagation.sum_sensitivities(own for _, own in found)


def _require_finite(**factors: float) -> None:
    for name, value in factors.items():
        if not math.isfinite(value):
            raise ValueError(f"expected {name} to be a finite number, got {name}={value}")
