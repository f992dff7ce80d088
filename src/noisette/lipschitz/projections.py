"""Maps onto sets of matrices that stretch no vector. Equal objects project alike, so layers can be projected together.

Every map works on a stack (k, n, m) and certifies the very numbers it hands back, after they were rounded to the
precision of the weights. A feasible stack comes back as it was, or moved by rounding alone.

Source: Bethune et al. 2024, section 3 and appendix D; the iteration is that of Björck & Bowie 1971.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from noisette.lipschitz.norm_bounds import frobenius_bound, residual_bound

_STEPS = 30  # a singular value of 1e-5 gets there
_CONVERGENT = 1.7  # a step keeps singular values within one from up to sqrt(3), without turning their sign


@dataclass(frozen=True)
class Orthogonal:
    """All singular values become one, by a few products of matrices; gradients then keep their norm through a layer.

    Where these do not get there (a singular value near zero, or weights too large to square), the singular value
    decomposition finds the same matrix.

    Guarantee: norms are certified by the residual ``||A'A - I||_F`` in double precision, however the matrix was found.

    Raises:
        ValueError: a weight is not finite.

    >>> matrices, norms = Orthogonal()(torch.tensor([[[0.0, 2.0], [0.5, 0.0]]]))
    >>> matrices.round(decimals=5).tolist(), norms.round(decimals=5).tolist()
    ([[[0.0, 1.0], [1.0, 0.0]]], [1.0])
    """

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        if matrices.shape[-2] < matrices.shape[-1]:
            found, norms = self(matrices.mT)
            return found.mT, norms
        gram = _gram(matrices)
        reached, residual = _reached(gram), _residual(gram)
        if not residual.isfinite().all():
            _require_finite(matrices)  # they may be too large to square
        if (residual <= math.sqrt(reached)).all():
            norms = residual_bound(matrices)
            if (norms.square() - 1 <= reached + 4 * matrices[0].numel() * torch.finfo(torch.float64).eps).all():
                return matrices, norms
        found = _iterated(matrices, gram)
        norms = residual_bound(found)
        if (missed := ~(norms <= 1 + math.sqrt(reached))).any():
            u, _, vh = torch.linalg.svd(matrices[missed].double(), full_matrices=False)
            found[missed] = (u @ vh).to(found.dtype)
            norms[missed] = residual_bound(found[missed])
        return found, norms


@dataclass(frozen=True)
class FrobeniusBall:
    """The nearest matrix whose numbers, taken as one vector, have a norm of at most ``radius``.

    It is a vector's own projection, natural for a bias or for a head of one output.

    Raises:
        ValueError: the radius is not a finite number above zero.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise ValueError(f"expected a finite radius > 0, got radius={self.radius}")

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        return _shrunk(matrices, frobenius_bound, self.radius)


def _shrunk(matrices: Tensor, bound: Callable[[Tensor], Tensor], radius: float) -> tuple[Tensor, Tensor]:
    """Each matrix divided by what its bound exceeds the radius by, and the bounds of the results."""
    _require_finite(matrices)
    norms = bound(matrices)
    excess = norms / radius
    # Rounding may leave a result a little above the radius; to divide it again in every step would wear it down.
    over = excess > 1 + 8 * torch.finfo(matrices.dtype).eps
    if not over.any():
        return matrices, norms
    shrunk = (matrices / torch.where(over, excess, 1.0)[:, None, None]).to(matrices.dtype)
    return shrunk, bound(shrunk)


def _iterated(tall: Tensor, gram: Tensor) -> Tensor:
    """Steps A <- 1.5 A - 0.5 A A'A, which bring every singular value s in (0, sqrt(3)) nearer to one."""
    nearly = math.sqrt(_reached(gram)) / 2
    off = gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    bound = torch.sqrt(1 + torch.linalg.matrix_norm(off @ off).sqrt())  # ||E|| <= ||E^2||_F^(1/2)
    scale = torch.where(bound > _CONVERGENT, bound, 1.0)[:, None, None]
    tall, gram = tall / scale, gram / scale.square()
    for _ in range(_STEPS):
        last = (_residual(gram) <= nearly).all()
        tall = torch.baddbmm(tall, tall, gram, beta=1.5, alpha=-0.5)
        if last:
            break
        gram = _gram(tall)
    return tall


def _reached(gram: Tensor) -> float:
    """The residual that rounding alone leaves; one step from the half of its square root gets there."""
    return 8 * torch.finfo(gram.dtype).eps * math.sqrt(gram.shape[-1])


def _gram(tall: Tensor) -> Tensor:
    return tall.mT @ tall


def _residual(gram: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))


def _require_finite(matrices: Tensor) -> None:
    if not matrices.isfinite().all():
        bad = int((~matrices.isfinite()).sum())
        raise ValueError(
            f"{bad} of {matrices.numel()} weights are not finite numbers, so they cannot be projected; a learning rate "
            "that is too large does this"
        )
