"""Certified accuracy of a Lipschitz network on its test examples, as a function of the radius."""

from __future__ import annotations

import torch
from torch import nn

from noisette.data import Split
from noisette.models import FixedFeatures
from noisette.nn.lipschitz.certified_radius import certified_accuracy, certify

_PLACES = 41
_EXAMPLES = 2000


def certified_curve(model: nn.Module, test: Split) -> list[tuple[float, float]]:
    """Radii from 0 on, each with the share of the first 2000 test examples that is certified within it.

    It is empty if a part of the model has no known Lipschitz constant.
    """
    whole = nn.Sequential(model.features, model.head) if isinstance(model, FixedFeatures) else model
    device = next(model.parameters()).device
    inputs = torch.as_tensor(test.inputs[:_EXAMPLES], device=device)
    targets = torch.as_tensor(test.targets[:_EXAMPLES], device=device)
    try:
        radii = certify(whole, inputs)
    except ValueError:
        return []
    distances = torch.linspace(0, float(radii.quantile(0.99)), _PLACES).tolist()
    shares = certified_accuracy(whole, inputs, targets, distances)
    return list(zip(distances, shares, strict=True))
