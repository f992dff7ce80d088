"""Models whose first part is fixed."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from noisette.nn.standardise import Standardise


class FixedFeatures(nn.Module):
    """A model whose first part is fixed, so that its outputs can be computed once for a whole data set.

    The fixed part is always in evaluation mode: dropout is off and running statistics do not change.

    Guarantee: ``features`` has no trainable parameters and treats each example alone, so computing it in advance does
    not change what training reveals.
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.features.eval()
        return self


def standardised(model: FixedFeatures, public: Tensor) -> FixedFeatures:
    """The model with its features standardised by the mean and standard deviation of public examples' features.

    Args:
        model: not changed.
        public: the output of ``model.features`` for public examples, (n, channels, ...).

    Guarantee: none for the public examples, see :class:`noisette.nn.Standardise`.
    """
    return FixedFeatures(nn.Sequential(model.features, Standardise.of_public(public)), model.head)
