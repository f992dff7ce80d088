"""Models whose first part is fixed."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from noisette.nn.standardise import Standardise
from noisette.nn.whitening import Whitening


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


def behind(layer: nn.Module, model: nn.Module) -> nn.Module:
    """The model behind a fixed layer, which is a part of the fixed features if the model has any.

    >>> behind(Standardise(0.5), nn.Linear(2, 1))
    Sequential(
      (0): Standardise(mean of shape (), scale of shape ())
      (1): Linear(in_features=2, out_features=1, bias=True)
    )
    """
    if isinstance(model, FixedFeatures):
        return FixedFeatures(nn.Sequential(layer, model.features), model.head)
    return nn.Sequential(layer, model)


def standardised(model: FixedFeatures, public: Tensor) -> FixedFeatures:
    """The model with its features standardised by the mean and standard deviation of public examples' features.

    Args:
        model: not changed.
        public: the output of ``model.features`` for public examples, (n, channels, ...).

    Guarantee: none for the public examples, see :class:`noisette.nn.Standardise`.
    """
    return FixedFeatures(nn.Sequential(model.features, Standardise.of_public(public)), model.head)


def whitened(model: FixedFeatures, whitening: Whitening) -> FixedFeatures:
    """The model with its features whitened, and a new linear layer in front of which they are.

    Args:
        model: fixed features and one linear layer, such as ``scattering``; not changed.
        whitening: of its features.

    Raises:
        ValueError: the trained part is more than a linear layer, which takes features in their places.
    """
    if not isinstance(model.head, nn.Linear):
        raise ValueError(
            "whitened features are for a model whose trained part is one linear layer, such as scattering; this one "
            f"trains a {type(model.head).__name__}"
        )
    head = nn.Linear(len(whitening.components), model.head.out_features, device=model.head.weight.device)
    return FixedFeatures(nn.Sequential(model.features, whitening), head)
