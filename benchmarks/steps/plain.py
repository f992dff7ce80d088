"""Steps in plain PyTorch: training without privacy, the same compiled, and one example after another."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.steps import sgd

F = nn.functional


def plain(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """Ordinary SGD on the mean loss."""
    return _step(model, data, lambda x, y: F.cross_entropy(model(x), y))


def plain_compiled(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """The same, with forward, loss and backward compiled by ``torch.compile``."""
    return _step(model, data, torch.compile(lambda x, y: F.cross_entropy(model(x), y)))


def _step(model: nn.Module, data: sgd.Data, loss: Callable[[Tensor, Tensor], Tensor]) -> sgd.Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE)
    batches = data.batches()
    return sgd.step_of(optimizer, lambda: loss(*next(batches)).backward())


def nxbp(model: nn.Module, data: sgd.Data) -> sgd.Step:
    """One example after another, forward and backward, in plain PyTorch (nxBP in Lee & Kifer 2020)."""
    params, batches = list(model.parameters()), data.batches()

    def step() -> None:
        inputs, targets = next(batches)
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
