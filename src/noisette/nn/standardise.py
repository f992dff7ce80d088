"""Standardisation by constants, which are declared or computed from public examples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn

from noisette.lipschitz.protocols import NormBound, Sensitivities

_CONSTANT = 1e-6  # relative to the largest standard deviation; below it, a channel counts as constant


class Standardise(nn.Module):
    """``(x - mean) / scale`` with constants, which are saved with the weights and never trained.

    Args:
        mean: a number, or a tensor that broadcasts to one example.
        scale: likewise, above zero; 1 keeps distances unchanged.

    Guarantee: none for records that the constants were computed from. Declare them from public knowledge, or compute
    them from public examples with :meth:`of_public`; statistics of the private records would be a release that no
    ledger contains.

    Raises:
        ValueError: a mean is not finite, or a scale is not finite or not above zero.

    >>> Standardise(mean=0.5, scale=0.25)(torch.tensor([[0.0, 1.0]]))
    tensor([[-2.,  2.]])
    """

    def __init__(self, mean: Tensor | float, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.get_default_dtype()).detach().clone())
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.get_default_dtype()).detach().clone())
        if not self.mean.isfinite().all():
            raise ValueError("expected finite means")
        if not ((self.scale > 0) & self.scale.isfinite()).all():
            raise ValueError(f"expected finite scales above zero, got one of {self.scale.min():g}")

    @classmethod
    def of_public(cls, examples: Tensor) -> Self:
        """With the mean of these examples at each position, and their standard deviation in each channel.

        A channel that does not vary is centred but not scaled.

        Args:
            examples: public ones, (n, channels, ...).

        Guarantee: none for these examples.
        """
        mean = examples.double().mean(0)
        axes = [axis for axis in range(examples.dim()) if axis != 1]
        deviation = (examples.double() - mean).square().mean(axes, keepdim=True)[0].sqrt()
        deviation[deviation <= _CONSTANT * deviation.max()] = 1.0
        return cls(mean, deviation).to(examples)

    @classmethod
    def of_channels(cls, mean: Sequence[float], scale: Sequence[float], shape: Sequence[int]) -> Self:
        """With one declared mean and scale for each channel, or one for all.

        Args:
            mean: one number, or as many as channels.
            scale: likewise.
            shape: that of an example, (channels, ...).

        Raises:
            ValueError: there is another number of means or scales, or one is out of its domain.

        >>> Standardise.of_channels([0.5], [0.25], (1, 2, 2)).mean.shape
        torch.Size([1, 1, 1])
        """
        for name, values in (("mean", mean), ("scale", scale)):
            if len(values) not in (1, shape[0]):
                raise ValueError(
                    f"expected 1 or {shape[0]} values as {name}, the channels of an example of shape {tuple(shape)}, "
                    f"got {len(values)}"
                )
        axes = [1] * (len(shape) - 1)
        return cls(*(torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, *axes) for values in (mean, scale)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale

    def bound_forward(self, x: NormBound) -> NormBound:
        shift = self.mean.double().broadcast_to(x.shape).norm().item()
        return NormBound((x.norm + shift) / self._smallest_scale, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g / self._smallest_scale, {}

    @property
    def _smallest_scale(self) -> float:
        return self.scale.min().item()

    def extra_repr(self) -> str:
        return f"mean of shape {tuple(self.mean.shape)}, scale of shape {tuple(self.scale.shape)}"
