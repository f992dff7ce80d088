"""Networks of every kind of Lipschitz layer, small enough for a search."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from noisette.nn.lipschitz import (
    Abs,
    BallBias,
    BoundedInput,
    FullSort,
    GlobalL2NormPool2d,
    GroupSort2,
    L2NormPool2d,
    LayerCentering,
    LipschitzConcat,
    LipschitzResidual,
    MixerBlock,
    NormCap,
    PatchConv2d,
    ScaledAvgPool2d,
    SpectralConv2d,
    SpectralLinear,
    SphereInput,
)

X0 = 2.0


def dense() -> nn.Module:
    return nn.Sequential(
        *(BoundedInput(X0), SpectralLinear(6, 6), GroupSort2(), SpectralLinear(6, 6), GroupSort2()),
        SpectralLinear(6, 3),
    )


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "dense": (dense, (6,)),
    "dense with biases": (
        lambda: nn.Sequential(
            *(BoundedInput(X0), SpectralLinear(5, 6), BallBias(6, 0.3), GroupSort2(), NormCap(1.5)),
            *(SpectralLinear(6, 4), BallBias(4, 0.2), Abs(), SpectralLinear(4, 3)),
        ),
        (5,),
    ),
    "convolution": (
        lambda: nn.Sequential(
            *(BoundedInput(X0), SpectralConv2d(2, 4, 3, padding=1), BallBias(4, 0.3), GroupSort2(), L2NormPool2d(2)),
            *(LayerCentering(1), nn.Flatten(), SpectralLinear(36, 3)),
        ),
        (2, 6, 6),
    ),
    "strided convolution": (
        lambda: nn.Sequential(
            *(BoundedInput(X0), SpectralConv2d(1, 4, 3, stride=2, padding=1), FullSort(), ScaledAvgPool2d(2)),
            *(nn.Flatten(), SpectralLinear(16, 3)),
        ),
        (1, 8, 8),
    ),
    "global pooling": (
        lambda: nn.Sequential(
            *(BoundedInput(X0), SpectralConv2d(1, 2, 3, padding=1), GroupSort2(), GlobalL2NormPool2d()),
            *(nn.Flatten(), SpectralLinear(2, 3)),
        ),
        (1, 5, 5),
    ),
    "residual": (
        lambda: nn.Sequential(
            *(SphereInput(X0), SpectralLinear(4, 4)),
            LipschitzResidual(nn.Sequential(SpectralLinear(4, 4), GroupSort2())),
            *(LipschitzConcat([SpectralLinear(4, 4), nn.Tanh()]), SpectralLinear(8, 3)),
        ),
        (4,),
    ),
    "mixer": (
        lambda: nn.Sequential(
            *(BoundedInput(X0), PatchConv2d(1, 4, patch=2), MixerBlock(channels=4, tokens=4)),
            *(nn.Flatten(), SpectralLinear(16, 3)),
        ),
        (1, 4, 4),
    ),
}
