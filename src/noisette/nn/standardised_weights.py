"""Convolutions with standardised weights, which need no statistics of examples."""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.utils import parametrize

_SMALLEST = 1e-8  # deviation; a filter whose weights are equal becomes zero


class _Standardised(nn.Module):
    """Each filter with mean 0 and deviation 1 / sqrt(its number of weights)."""

    def forward(self, weight: Tensor) -> Tensor:
        filters = weight.flatten(1)
        centred = filters - filters.mean(1, keepdim=True)
        deviation = centred.square().mean(1, keepdim=True).clamp(min=_SMALLEST**2).sqrt()
        return (centred / (deviation * math.sqrt(filters.shape[1]))).view_as(weight)


def weight_standardised(model: nn.Module) -> nn.Module:
    """The model, changed in place so that each of its convolutions has standardised weights.

    Before each use the weights of a filter are moved to the mean 0 and scaled to the deviation 1 / sqrt(n), n being
    their number, which keeps the size of its inputs; biases stay. A group norm should follow, which has a scale of its
    own. The weights of convolutions ``name`` are then called ``name.parametrizations.weight.original``.

    Args:
        model: a new one or one with weights; convolutions that are frozen stay as they are.

    Guarantee: weights are computed from weights alone, so that examples stay apart. The clipped gradients are those of
    the original weights.
    Source: Qiao et al. 2019, "Micro-batch training with batch-channel normalization and weight standardization", and
    Brock et al. 2021 for the scale; in private training De et al. 2022, section 3.2.

    Raises:
        ValueError: the model has no convolution that is trained, or the weights of one are derived already.

    >>> model = weight_standardised(nn.Sequential(nn.Conv2d(1, 4, 3)))
    >>> model[0].weight.flatten(1).norm(dim=1).detach().round(decimals=4)
    tensor([1., 1., 1., 1.])
    """
    layers = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and part.weight.requires_grad
    }
    if not layers:
        raise ValueError("the model has no convolution that is trained, whose weights could be standardised")
    if derived := [name for name, part in layers.items() if parametrize.is_parametrized(part, "weight")]:
        raise ValueError(f"the weights of {', '.join(derived)} are derived from others already; give a plain model")
    for part in layers.values():
        parametrize.register_parametrization(part, "weight", _Standardised())
    return model
