"""Steps in plain PyTorch: training without privacy, the same compiled, and one example after another."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.steps import sgd

F = nn.functional


def plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> sgd.Step:
    """Ordinary SGD on the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE)
    return sgd.step_of(optimizer, lambda: F.cross_entropy(model(inputs), targets).backward())


def plain_compiled(model: nn.Module, inputs: Tensor, targets: Tensor) -> sgd.Step:
    """The same, with forward, loss and backward compiled by ``torch.compile``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE)
    loss = torch.compile(lambda x, y: F.cross_entropy(model(x), y))
    return sgd.step_of(optimizer, lambda: loss(inputs, targets).backward())


def nxbp(model: nn.Module, inputs: Tensor, targets: Tensor) -> sgd.Step:
    """One example after another, forward and backward, in plain PyTorch (nxBP in Lee & Kifer 2020)."""
    params = list(model.parameters())

    def step() -> None:
        total = [torch.zeros_like(p) for p in params]
        for x, y in zip(inputs.split(1), targets.split(1), strict=True):
            gradients = torch.autograd.grad(F.cross_entropy(model(x), y), params)
            factor = (sgd.MAX_GRAD_NORM / nn.utils.get_total_norm(gradients)).clamp(max=1.0)
            for t, g in zip(total, gradients, strict=True):
                t.addcmul_(g, factor)
        with torch.no_grad():
            for p, t in zip(params, total, strict=True):
                noised = t.add_(torch.randn_like(t), alpha=sgd.MAX_GRAD_NORM * sgd.NOISE_MULTIPLIER)
                p.add_(noised, alpha=-sgd.LEARNING_RATE / len(targets))

    return step
