"""The base class of 1-Lipschitz modules without parameters."""

from __future__ import annotations

from torch import nn

from noisette.lipschitz.protocols import NormBound, Sensitivities


class OneLipschitz(nn.Module):
    """A 1-Lipschitz module that maps zero to zero: it increases no norm, neither of examples nor of gradients."""

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of one example's output.

        Raises:
            ValueError: the module cannot take an example of this shape.
        """
        return shape

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(x.norm, self.output_shape(x.shape))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}
