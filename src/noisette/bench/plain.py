"""Steps in plain PyTorch: training without privacy, the same compiled, and the baselines of Lee & Kifer 2020."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from noisette.bench import sgd

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
    """One example after another, forward and backward (nxBP in Lee & Kifer 2020)."""
    params = list(model.parameters())

    def step() -> None:
        total = [torch.zeros_like(p) for p in params]
        for x, y in zip(inputs.split(1), targets.split(1), strict=True):
            _add_clipped(total, torch.autograd.grad(F.cross_entropy(model(x), y), params))
        _descend(params, total, len(targets))

    return step


def multi_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> sgd.Step:
    """One forward pass of the batch, one backward pass per example; all gradients are kept (multiLoss in the paper)."""
    params = list(model.parameters())

    def step() -> None:
        losses = F.cross_entropy(model(inputs), targets, reduction="none")
        gradients = [torch.autograd.grad(loss, params, retain_graph=True) for loss in losses]
        total = [torch.zeros_like(p) for p in params]
        for of_example in gradients:
            _add_clipped(total, of_example)
        _descend(params, total, len(targets))

    return step


def _add_clipped(total: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    factor = (sgd.MAX_GRAD_NORM / nn.utils.get_total_norm(gradients)).clamp(max=1.0)
    for t, g in zip(total, gradients, strict=True):
        t.addcmul_(g, factor)


@torch.no_grad()
def _descend(params: Sequence[Tensor], total: Sequence[Tensor], batch_size: int) -> None:
    """Add noise to the sums and take a step; the sums are overwritten."""
    for p, t in zip(params, total, strict=True):
        noised = t.add_(torch.randn_like(t), alpha=sgd.MAX_GRAD_NORM * sgd.NOISE_MULTIPLIER)
        p.add_(noised, alpha=-sgd.LEARNING_RATE / batch_size)
