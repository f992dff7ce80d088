"""Activations with a learned slope."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.gradients.rules.examples import Examples
from noisette.gradients.rules.forms import ExampleGradients
from noisette.gradients.rules.normalization import unbroadcast_channels
from noisette.gradients.rules.registry import rule


@rule(torch.prelu, torch.Tensor.prelu, operand="weight")
def prelu_weight(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor) -> ExampleGradients:
    """G_c = sum over positions of dy_c min(x_c, 0)."""
    return unbroadcast_channels(examples, dy * input.clamp(max=0), weight)
