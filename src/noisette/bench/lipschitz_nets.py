"""Lipschitz networks for images of 28 pixels a side, without biases, in the manner of Bethune et al. 2024."""

from __future__ import annotations

from torch import nn

from noisette.nn.lipschitz import (
    BoundedInput,
    GroupSort2,
    L2NormPool2d,
    MixerBlock,
    PatchConv2d,
    SpectralConv2d,
    SpectralLinear,
)

_X0 = 3.0


def lipschitz_dense() -> nn.Module:
    """784 inputs, 128 hidden units, 10 outputs: 101,632 parameters."""
    return nn.Sequential(BoundedInput(_X0), SpectralLinear(784, 128), GroupSort2(), SpectralLinear(128, 10))


def lipschitz_mixer() -> nn.Module:
    """Patches of four pixels a side, one mixer block of 64 channels, and a linear layer."""
    return nn.Sequential(
        *(BoundedInput(_X0), PatchConv2d(1, 64, patch=4), GroupSort2()),
        *(MixerBlock(channels=64, tokens=49), nn.Flatten(), SpectralLinear(64 * 49, 10)),
    )


def lipschitz_conv() -> nn.Module:
    """Two 3x3 convolutions of 16 and 32 channels, each with pooling, and a linear layer."""
    return nn.Sequential(
        *(BoundedInput(_X0), SpectralConv2d(1, 16, 3, padding=1), GroupSort2(), L2NormPool2d(2)),
        *(SpectralConv2d(16, 32, 3, padding=1), GroupSort2(), L2NormPool2d(2)),
        *(nn.Flatten(), SpectralLinear(32 * 49, 10)),
    )
