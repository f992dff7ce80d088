"""Activations with a slope to learn."""

from __future__ import annotations

import torch
from torch import Tensor

from noisette.rules._examples import Examples
from noisette.rules._registry import rule
from noisette.rules.gradients import ExampleGradients
from noisette.rules.normalization import reduced_channels


@rule(torch.prelu, torch.Tensor.prelu, operand="weight")
def prelu_weight(examples: Examples, dy: Tensor, input: Tensor, weight: Tensor) -> ExampleGradients:
    """G_c = sum over positions of dy_c min(x_c, 0)."""
    return reduced_channels(examples, dy * input.clamp(max=0), weight)
