"""A block of linear layers over tokens, then over channels: Bethune et al. 2024, appendix (MLP-Mixer)."""

from __future__ import annotations

from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz import propagation
from noisette.lipschitz.protocols import NormBound, Projection, Sensitivities
from noisette.nn.lipschitz.activations import GroupSort2
from noisette.nn.lipschitz.centering import LayerCentering
from noisette.nn.lipschitz.constrained import ORTHOGONAL
from noisette.nn.lipschitz.linear import SpectralLinear


class TokenMix(nn.Module):
    """Applies a module of the last axis along the tokens of (b, tokens, channels).

    >>> import torch
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

    Each half is a linear layer, :class:`GroupSort2`, :class:`LayerCentering` and a linear layer. Its hidden width is
    that of its axis, or one more where that is odd, because GroupSort2 needs pairs. There is no skip connection: wrap
    the block in :class:`LipschitzResidual` for one.

    Args:
        tokens: number of tokens; positions, for maps.
        channels: number of channels.
        projection: the projection of its four weights.

    Inputs are sequences (b, tokens, channels), or maps (b, channels, height, width) with ``tokens`` positions.

    Guarantee: as for :class:`SpectralLinear`, for each of its four weights.
    Source: Tolstikhin et al. 2021 for the block; Bethune et al. 2024 for its Lipschitz form. The centring is over one
    example only.

    Raises:
        ValueError: a number is below one, or (when bounds are computed) the input has another shape.

    >>> import torch
    >>> block = MixerBlock(tokens=49, channels=64)
    >>> block(torch.zeros(2, 64, 7, 7)).shape, block(torch.zeros(2, 49, 64)).shape
    (torch.Size([2, 64, 7, 7]), torch.Size([2, 49, 64]))
    """

    def __init__(self, tokens: int, channels: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__()
        checks.count(tokens=tokens, channels=channels)
        self.tokens = tokens
        self.channels = channels
        self.mix_tokens = TokenMix(_mlp(tokens, projection))
        self.mix_channels = _mlp(channels, projection)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 3:
            return self.mix_channels(self.mix_tokens(x))
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
        maps = len(x.shape) == 3 and (x.shape[0], x.shape[1] * x.shape[2]) == (self.channels, self.tokens)
        if not maps and x.shape != (self.tokens, self.channels):
            raise ValueError(
                f"this MixerBlock takes examples of shape ({self.tokens}, {self.channels}), or {self.channels} maps of "
                f"{self.tokens} positions, got {x.shape}"
            )
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
