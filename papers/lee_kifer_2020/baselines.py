"""The paper's baseline multiLoss as a measured method; nxBP is among those of the benchmark.

Importing this file adds it to the methods that the benchmark can measure.
"""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.steps import sgd
from benchmarks.steps.methods import METHODS


def multi_loss(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """One forward pass, then one backward pass for each example, all gradients kept until they are clipped."""
    params = list(model.parameters())

    def step() -> None:
        losses = nn.functional.cross_entropy(model(data.inputs), data.targets, reduction="none")
        each = [torch.autograd.grad(loss, params, retain_graph=True) for loss in losses]
        with torch.no_grad():
            stacked = [torch.stack(gradients) for gradients in zip(*each, strict=True)]
            del each
            squares = torch.stack([g.flatten(1).square().sum(1) for g in stacked]).sum(0)
            factors = (sgd.MAX_GRAD_NORM / squares.sqrt()).clamp(max=1.0)
            for p, g in zip(params, stacked, strict=True):
                total = torch.tensordot(factors, g, dims=1)
                noised = total.add_(torch.randn_like(total), alpha=sgd.MAX_GRAD_NORM * sgd.NOISE_MULTIPLIER)
                p.add_(noised, alpha=-sgd.LEARNING_RATE / len(data.targets))

    return step


METHODS["MultiLoss"] = multi_loss
