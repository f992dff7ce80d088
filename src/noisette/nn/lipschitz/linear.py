"""The linear layer of a Lipschitz network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz.project import project
from noisette.lipschitz.protocols import NormBound, Projection, Sensitivities
from noisette.nn.lipschitz.constrained import ORTHOGONAL, ConstrainedModule


class SpectralLinear(ConstrainedModule):
    """A 1-Lipschitz linear map of the last axis, without bias; its weight is initialised orthogonal.

    Inputs are (b, in_features) or (b, positions, in_features), with any number of position axes.

    Guarantee: for one example whose input has a norm of at most X, over all positions, and whose gradient with respect
    to the output has a norm of at most g, the norm of the gradient of ``weight`` is at most g X.
    Source: Bethune et al. 2024, section 3. The gradient is G'X, and ||G'X||_F <= ||G||_F ||X||.

    Raises:
        ValueError: a number of features is below one.

    >>> layer = SpectralLinear(4, 2)
    >>> (layer.weight @ layer.weight.T).detach().abs().round(decimals=4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> [round(delta, 4) for delta in layer.bound_backward(NormBound(3.0, (4,)), 2.0)[1].values()]
    [6.0]
    """

    def __init__(self, in_features: int, out_features: int, projection: Projection = ORTHOGONAL) -> None:
        checks.count(in_features=in_features, out_features=out_features)
        super().__init__(projection)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(out_features, in_features)))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight)

    def matrices(self) -> Tensor:
        return self.weight.unsqueeze(0)

    def bound_forward(self, x: NormBound) -> NormBound:
        if not x.shape or x.shape[-1] != self.in_features:
            raise ValueError(f"SpectralLinear takes {self.in_features} features on its last axis, got shape {x.shape}")
        return NormBound(self.norm * x.norm, (*x.shape[:-1], self.out_features))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return self.norm * g, {self.weight: g * x.norm}

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, projection={self.projection}"
