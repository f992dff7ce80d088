"""Inputs of bounded norm, and blocks of layers."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz import propagation
from noisette.lipschitz.layers import ORTHOGONAL, GroupSort2, LayerCentering, Shape, SpectralLinear, per_example_norms
from noisette.lipschitz.propagation import NormBound, Projection, Sensitivities, Shown, Stretching

__all__ = ["BoundedInput", "MixerBlock", "Scale", "SphereInput", "TokenMix"]

_NO_DIRECTION = 1e-30  # in units of the radius: a shorter example is too close to underflow to be scaled up


class BoundedInput(Shown):
    """Scales each example down to a Euclidean norm of at most ``x0``, over all its elements.

    It is the first layer of a model; it may stand inside too, as behind a bias. An example with an element that is not
    finite becomes zeros.

    Guarantee: ``x0`` must be a public constant. A maximum, mean or standard deviation of the private examples would
    disclose information about them.

    >>> BoundedInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.3, 0.4], [math.nan, 1.0]])).tolist()
    [[3.0, 4.0], [0.30000001192092896, 0.4000000059604645], [0.0, 0.0]]
    """

    def __init__(self, x0: float) -> None:
        super().__init__()
        checks.positive(x0=x0)
        self.x0 = x0

    def forward(self, x: Tensor) -> Tensor:
        norms = per_example_norms(x) / self.x0
        return _divide(x, norms.clamp(min=1), norms.isfinite())

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(min(x.norm, self.x0), x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}


class SphereInput(BoundedInput):
    """Scales each example to a Euclidean norm of ``x0``, over all its elements; an example of zeros does not change.

    Bounds are tighter than behind :class:`BoundedInput`, because the norm of every example equals its bound. The map
    has no Lipschitz constant near zero, so no layer in front of it can train. ``x0`` must be public here too.

    >>> SphereInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.0, 0.1], [0.0, 0.0]])).tolist()
    [[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        norms = per_example_norms(x) / self.x0
        return _divide(x, norms, norms > _NO_DIRECTION)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.x0, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return math.inf, {}


def _divide(x: Tensor, divisors: Tensor, keep: Tensor) -> Tensor:
    """Each example divided by its own divisor, shape (b,); zeros where ``keep`` is false or the divisor not finite."""
    keep = keep & divisors.isfinite()
    rows = (len(x), *[1] * (x.dim() - 1))
    # A division, because the reciprocal of a large number loses digits. A divisor beyond the range of x.dtype becomes
    # infinite and gives zeros.
    quotients = x / torch.where(keep, divisors, 1.0).to(x.dtype).view(rows)
    return torch.where(keep.view(rows), quotients, 0.0)


class Scale(Stretching):
    """Multiplies by a constant.

    >>> Scale(-2.0).bound_forward(NormBound(3.0, (5,))).norm
    6.0
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        if not math.isfinite(factor):
            raise ValueError(f"expected a finite factor, got factor={factor}")
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def constant(self, shape: Shape) -> float:
        return abs(self.factor)


class TokenMix(nn.Module):
    """Applies a module of the last axis along the tokens of (b, tokens, channels).

    >>> TokenMix(SpectralLinear(9, 4))(torch.zeros(2, 9, 5)).shape
    torch.Size([2, 4, 5])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.transpose(1, 2)).transpose(1, 2)

    def bound_forward(self, x: NormBound) -> NormBound:
        return _transposed(propagation.forward(self.module, _transposed(x)))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return propagation.backward(self.module, _transposed(x), g)


class MixerBlock(nn.Module):
    """Mixes the tokens of each channel, then the channels of each token; the shape does not change.

    Inputs are maps (b, channels, height, width) with ``tokens`` positions, or (b, channels, tokens, 1). Each
    half is a linear layer, :class:`GroupSort2`, :class:`LayerCentering` and a linear layer. Its hidden width is that of
    its axis, or one more where that is odd.

    Source: Tolstikhin et al. 2021 for the block; Bethune et al. 2024 for its Lipschitz form.

    >>> block = MixerBlock(tokens=49, channels=64)
    >>> block(torch.zeros(2, 64, 7, 7)).shape
    torch.Size([2, 64, 7, 7])
    """

    def __init__(self, tokens: int, channels: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__()
        checks.count(tokens=tokens, channels=channels)
        self.tokens, self.channels = tokens, channels
        self.mix_tokens = TokenMix(_mlp(tokens, projection))
        self.mix_channels = _mlp(channels, projection)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix_channels(self.mix_tokens(x.flatten(2).transpose(1, 2)))
        return mixed.transpose(1, 2).reshape(x.shape)

    def bound_forward(self, x: NormBound) -> NormBound:
        between = propagation.forward(self.mix_tokens, self._as_sequence(x))
        return NormBound(propagation.forward(self.mix_channels, between).norm, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        sequence = self._as_sequence(x)
        g, of_channels = propagation.backward(self.mix_channels, propagation.forward(self.mix_tokens, sequence), g)
        g, of_tokens = propagation.backward(self.mix_tokens, sequence, g)
        return g, propagation.sum_sensitivities([of_tokens, of_channels])

    def _as_sequence(self, x: NormBound) -> NormBound:
        if len(x.shape) != 3 or (x.shape[0], x.shape[1] * x.shape[2]) != (self.channels, self.tokens):
            raise ValueError(f"this MixerBlock takes {self.channels} maps of {self.tokens} positions, got {x.shape}")
        return NormBound(x.norm, (self.tokens, self.channels))


def _mlp(width: int, projection: Projection) -> nn.Sequential:
    """Two linear layers over the last axis with the activation and the centring between them."""
    hidden = width + width % 2
    return nn.Sequential(
        SpectralLinear(width, hidden, projection),
        GroupSort2(dim=-1),
        LayerCentering(-1),
        SpectralLinear(hidden, width, projection),
    )


def _transposed(x: NormBound) -> NormBound:
    if len(x.shape) != 2:
        raise ValueError(f"tokens are mixed in examples of shape (tokens, channels), got {x.shape}")
    return NormBound(x.norm, (x.shape[1], x.shape[0]))
