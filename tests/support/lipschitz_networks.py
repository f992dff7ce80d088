"""Networks of every kind of Lipschitz layer, small enough for a search."""

from collections.abc import Callable, Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn

from noisette.core.release import BoundedSum
from noisette.nn import lipschitz as lip

X0 = 2.0


def dense(*widths: int) -> nn.Sequential:
    """Orthogonal layers of these widths with pair sorts between them, in double precision."""
    layers: list[nn.Module] = [lip.BoundedInput(X0)]
    for inputs, outputs in pairwise(widths):
        layers += [lip.SpectralLinear(inputs, outputs), lip.GroupSort2()]
    return nn.Sequential(*layers[:-1]).double()


def sum_of_gradients(model: nn.Module, x: Tensor, y: Tensor, tau: float) -> Tensor:
    """The sum of the gradients of the plain loss, one example at a time."""
    total = torch.zeros(())
    for one, label in zip(x.split(1), y.split(1), strict=True):
        loss = nn.functional.cross_entropy(tau * model(one), label) / tau
        total = total + torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
    return total


def spectral_norm(matrix: Tensor) -> float:
    """The largest singular value."""
    return float(torch.linalg.svdvals(matrix.double()).max())


def joint(sums: Iterable[BoundedSum]) -> Tensor:
    return torch.cat([g.double().flatten() for part in sums for g in part.grads])


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: dense(6, 6, 6, 3).float(), (6,)),
    "dense with a ball inside": (
        lambda: nn.Sequential(
            *(lip.BoundedInput(X0), lip.SpectralLinear(5, 6), lip.GroupSort2(), lip.BoundedInput(1.5)),
            *(lip.SpectralLinear(6, 4), nn.ReLU(), lip.SpectralLinear(4, 3)),
        ),
        (5,),
    ),
    "convolution": (
        lambda: nn.Sequential(
            *(lip.BoundedInput(X0), lip.SpectralConv2d(2, 4, 3, padding=1), lip.GroupSort2(), nn.MaxPool2d(2)),
            *(lip.LayerCentering(1), nn.Flatten(), lip.SpectralLinear(36, 3)),
        ),
        (2, 6, 6),
    ),
    "strided convolution": (
        lambda: nn.Sequential(
            *(lip.BoundedInput(X0), lip.SpectralConv2d(1, 4, 3, stride=2, padding=1), lip.GroupSort2()),
            *(lip.Scale(2.0), nn.AvgPool2d(2), nn.Flatten(), lip.SpectralLinear(16, 3)),
        ),
        (1, 8, 8),
    ),
    "sphere": (
        lambda: nn.Sequential(lip.SphereInput(X0), lip.SpectralLinear(4, 4), nn.Tanh(), lip.SpectralLinear(4, 3)),
        (4,),
    ),
    "mixer": (
        lambda: nn.Sequential(
            *(lip.BoundedInput(X0), lip.PatchConv2d(1, 4, patch=2), lip.MixerBlock(channels=4, tokens=4)),
            *(nn.Flatten(), lip.SpectralLinear(16, 3)),
        ),
        (1, 4, 4),
    ),
}
