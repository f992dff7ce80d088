"""Projections onto sets of matrices with a spectral norm of at most one (or a radius).

Equal objects are the same projection, so their layers can be projected together. Every projection maps a stack
(k, n, m) and certifies the norms of the values that it returns, after they were rounded to the precision of the
weights. A stack that is in the set already is returned as it was, or changed by rounding only.

Source: Bethune et al. 2024, section 3 and appendix D; the iteration is that of Björck & Bowie 1971.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from noisette.lipschitz.propagation import NormBound, Projection, Sensitivities, Shown

_STEPS = 30  # enough for a singular value of 1e-5 to reach one
_LEAST_NORM = 1e-3  # so that no bound behind a layer becomes zero with its weights
_CONVERGENT = 1.7  # largest singular value to start from: below sqrt(3), where a step would change its sign
_EPS = torch.finfo(torch.float64).eps


def residual_bound(matrices: Tensor) -> Tensor:
    """Bounds on the spectral norms of nearly orthogonal matrices (k, n, m), shape (k,).

    Source: ||A||^2 = ||A'A|| <= 1 + ||A'A - I||_F, where A is the matrix or its transpose, whichever has more rows.
    """
    tall = (matrices if matrices.shape[-2] >= matrices.shape[-1] else matrices.mT).double()
    gram = tall.mT @ tall
    # An entry of A'A sums n products: its error is at most n eps |a||b|; over all entries n eps times the trace of A'A.
    rounding = tall.shape[-2] * _EPS * gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    gram.diagonal(dim1=-2, dim2=-1).sub_(1)
    return torch.sqrt(1 + torch.linalg.matrix_norm(gram) + rounding)


def frobenius_bound(matrices: Tensor) -> Tensor:
    """The Frobenius norms of matrices (k, n, m), which bound their spectral norms, shape (k,)."""
    rounding = math.prod(matrices.shape[-2:]) * _EPS
    return torch.linalg.vector_norm(matrices, dim=(-2, -1), dtype=torch.float64) * (1 + rounding)


@dataclass(frozen=True)
class Orthogonal:
    """Sets all singular values to one, so that gradients keep their norm through a layer.

    A few matrix products do this, or where they do not converge the singular value decomposition. Norms are certified
    by the residual ``||A'A - I||_F`` in double precision either way. Weights that are not finite are a ValueError.

    >>> matrices, norms = Orthogonal()(torch.tensor([[[0.0, 2.0], [0.5, 0.0]]]))
    >>> matrices.round(decimals=5).tolist(), norms.round(decimals=5).tolist()
    ([[[0.0, 1.0], [1.0, 0.0]]], [1.0])
    """

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        if matrices.shape[-2] < matrices.shape[-1]:
            found, norms = self(matrices.mT)
            return found.mT, norms
        gram = matrices.mT @ matrices
        tolerance, residual = _rounding_residual(gram), _residual(gram)
        if not residual.isfinite().all():
            _require_finite(matrices)  # finite weights may also be too large to square
        if (residual <= math.sqrt(tolerance)).all():
            # Already orthogonal up to rounding: another step would only replace one rounding by another.
            norms = residual_bound(matrices)
            if (norms.square() - 1 <= tolerance + 4 * matrices[0].numel() * _EPS).all():
                return matrices, norms
        found = _bjorck(matrices, gram)
        norms = residual_bound(found)
        if (failed := ~(norms <= 1 + math.sqrt(tolerance))).any():
            u, _, vh = torch.linalg.svd(matrices[failed].double(), full_matrices=False)
            found[failed] = (u @ vh).to(found.dtype)
            norms[failed] = residual_bound(found[failed])
        return found, norms


@dataclass(frozen=True)
class FrobeniusBall:
    """Projects onto the matrices with a Frobenius norm of at most ``radius``, a finite number above zero.

    This suits a bias, or the weight of a layer with one output.
    """

    radius: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.radius < math.inf:
            raise ValueError(f"expected a finite radius > 0, got radius={self.radius}")

    def __call__(self, matrices: Tensor) -> tuple[Tensor, Tensor]:
        _require_finite(matrices)
        norms = frobenius_bound(matrices)
        excess = norms / self.radius
        # Rounding may leave a result slightly above the radius. Divided again in every step, it would shrink over time.
        outside = excess > 1 + 8 * torch.finfo(matrices.dtype).eps
        if not outside.any():
            return matrices, norms
        shrunk = (matrices / torch.where(outside, excess, 1.0)[:, None, None]).to(matrices.dtype)
        return shrunk, frobenius_bound(shrunk)


def _bjorck(tall: Tensor, gram: Tensor) -> Tensor:
    """Iterate A <- 1.5 A - 0.5 A A'A, which converges to the nearest orthogonal matrix; ``gram`` is A'A."""
    # A step maps each singular value s to 1.5 s - 0.5 s^3, so those in (0, sqrt(3)) converge to one, quadratically at
    # the end. Larger ones are first divided by an upper bound of the spectral norm.
    nearly = math.sqrt(_rounding_residual(gram)) / 2
    off = gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    # ||A||^2 <= 1 + ||E|| for E = A'A - I, and ||E|| = ||E^2||^(1/2) <= ||E^2||_F^(1/2), which is tighter than ||E||_F.
    bound = torch.sqrt(1 + torch.linalg.matrix_norm(off @ off).sqrt())
    scale = torch.where(bound > _CONVERGENT, bound, 1.0)[:, None, None]
    tall, gram = tall / scale, gram / scale.square()
    for _ in range(_STEPS):
        last = (_residual(gram) <= nearly).all()  # one more step squares this residual, down to rounding
        tall = torch.baddbmm(tall, tall, gram, beta=1.5, alpha=-0.5)
        if last:
            break
        gram = tall.mT @ tall
    return tall


def _rounding_residual(gram: Tensor) -> float:
    """The residual ``||A'A - I||_F`` that rounding alone leaves in an orthogonal matrix."""
    return 8 * torch.finfo(gram.dtype).eps * math.sqrt(gram.shape[-1])


def _residual(gram: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))


def _require_finite(matrices: Tensor) -> None:
    if not matrices.isfinite().all():
        bad = int((~matrices.isfinite()).sum())
        raise ValueError(f"{bad} of {matrices.numel()} weights to project are not finite: lower the learning rate")


class Constrained(Shown):
    """A linear map by ``weight``, which a projection keeps in a set of matrices; their norm is its Lipschitz constant.

    It is projected when a state dict is loaded and after each step; call :func:`project` when the module is created.
    """

    weight: nn.Parameter

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self.projection = projection
        self.norm = math.inf  # bound on the spectral norms of the matrices, from the last projection
        self.register_load_state_dict_post_hook(_project_after_load)

    def matrices(self) -> Tensor:
        """The constrained parameter as a stack of matrices, shape (k, n, m): a view, so writes change the parameter."""
        raise NotImplementedError

    def set_certified_norms(self, norms: Tensor) -> None:
        """Store the largest of the certified norms of the matrices, (k,); ValueError if one is not finite."""
        if not norms.isfinite().all():
            raise ValueError(f"the weights of {type(self).__name__} have no finite norm: {norms.tolist()}")
        self.norm = max(_LEAST_NORM, float(norms.max()))

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one example's output; ValueError if the map cannot take an example of this shape."""
        raise NotImplementedError

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.norm * x.norm, self.output_shape(x.shape))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.norm * g, {self.weight: g * x.norm}


def _project_after_load(module: nn.Module, _: object) -> None:
    project(module)


@torch.no_grad()
def project(model: nn.Module) -> None:
    """Project every constrained parameter of the model onto its set, and certify its norm there.

    Only released values are read, so this has no privacy cost. A weight that is not finite is a ValueError.

    Source: Bethune et al. 2024, algorithm 2, line "project".
    """
    batches: dict[object, list[Constrained]] = defaultdict(list)
    for module in model.modules():
        if isinstance(module, Constrained):
            stack = module.matrices()
            batches[module.projection, stack.shape, stack.dtype, stack.device].append(module)
    for modules in batches.values():
        stacks = [module.matrices() for module in modules]
        projected, norms = modules[0].projection(torch.cat(stacks))
        sizes = [len(stack) for stack in stacks]
        for module, stack, new, own in zip(modules, stacks, projected.split(sizes), norms.split(sizes), strict=True):
            stack.copy_(new)
            module.set_certified_norms(own)
