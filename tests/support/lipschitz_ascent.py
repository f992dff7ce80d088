"""The longest gradient that ascent finds for one example of a module, to hold bounds against.

Knows nothing of how a bound is computed. Constraints are restored by the decomposition of a dense matrix.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

Restore = Callable[[], None]


def worst_case_search(module, shape, target=None, *, restore=lambda: None, steps=120, rate=0.05) -> float:
    """Norm of the gradient of <G, module(x)> at ``target`` (a parameter, or the input if none), ||x|| = ||G|| = 1.

    The input, G and all parameters climb together; after each step ``restore`` puts the parameters back in their sets.
    """
    x = torch.randn(1, *shape, dtype=torch.float64, requires_grad=True)
    back = torch.randn_like(module(x)).requires_grad_()
    moving = [x, back, *module.parameters()]
    ascent = torch.optim.Adam(moving, lr=rate, maximize=True)
    best = 0.0
    for _ in range(steps):
        with torch.no_grad():
            x.div_(x.norm())
            back.div_(back.norm())
            restore()
        wanted = x if target is None else target
        [gradient] = torch.autograd.grad((module(x) * back).sum(), [wanted], create_graph=True)
        size = gradient.norm()
        best = max(best, float(size.detach()))
        climbs = torch.autograd.grad(size, moving, allow_unused=True)
        for tensor, climb in zip(moving, climbs, strict=True):
            tensor.grad = climb
        ascent.step()
    return best


def clip_singular_values(matrices: Tensor) -> None:
    """Singular values of each matrix of the stack that are above one become one, in place."""
    u, s, vh = torch.linalg.svd(matrices, full_matrices=False)
    matrices.copy_((u * s.clamp(max=1).unsqueeze(-2)) @ vh)


def dense_matrix(function: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> Tensor:
    """The matrix of a linear function of one example, one column for each number of its input."""
    size = torch.Size(shape).numel()
    units = torch.eye(size, dtype=torch.float64).reshape(size, *shape)
    return torch.cat([function(unit.unsqueeze(0)).reshape(-1, 1) for unit in units], 1).detach()


def spectral_norm(matrix: Tensor) -> float:
    """The largest singular value."""
    return float(torch.linalg.svdvals(matrix.double()).max())


def largest_stretch(module: nn.Module, shape: tuple[int, ...], pairs: int = 100) -> float:
    """How much further apart the module takes random pairs of inputs, half of them close together, at most."""
    first = torch.randn(pairs, *shape, dtype=torch.float64)
    apart = torch.randn_like(first) * torch.where(torch.arange(pairs) % 2 == 0, 1.0, 1e-3).view(-1, *[1] * len(shape))
    moved = (module(first + apart) - module(first)).detach().flatten(1).norm(dim=1)
    return float((moved / apart.flatten(1).norm(dim=1)).max())
