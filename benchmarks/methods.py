"""One training step by each method: plain, noisette's engines, and Opacus in all its modes where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn

import noisette
from noisette.bounding import Engine
from noisette.keystream import SecretKey

F = nn.functional
Step = Callable[[], None]
Method = Callable[[nn.Module, Tensor, Tensor], Step]

MAX_GRAD_NORM = 1.0
NOISE_MULTIPLIER = 1.0


def plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """Ordinary SGD on the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_engine(engine: Callable[[], Engine]) -> Method:
    """Clipping by an engine of noisette, noise from the secret key, SGD."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        clip = noisette.PerExampleClip(model, MAX_GRAD_NORM, engine=engine())
        release = noisette.GaussianRelease(SecretKey(), NOISE_MULTIPLIER, len(targets))
        names = {id(p): name for name, p in clip.parameters.items()}
        steps = iter(range(2**31))

        def step() -> None:
            clip.backward(F.cross_entropy(model(inputs), targets, reduction="none"))
            release(clip.take(), names, step=next(steps))
            optimizer.step()
            optimizer.zero_grad()

        return step

    return method


def loop(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """One example after another in plain PyTorch (nxBP)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    params = list(model.parameters())

    def step() -> None:
        total = [torch.zeros_like(p) for p in params]
        for x, y in zip(inputs.split(1), targets.split(1), strict=True):
            gradients = torch.autograd.grad(F.cross_entropy(model(x), y), params)
            norm = torch.stack([g.norm() for g in gradients]).norm()
            torch._foreach_add_(total, torch._foreach_mul(gradients, (MAX_GRAD_NORM / norm).clamp(max=1.0)))
        for p, g in zip(params, total, strict=True):
            p.grad = (g + MAX_GRAD_NORM * NOISE_MULTIPLIER * torch.randn_like(g)) / len(targets)
        optimizer.step()
        optimizer.zero_grad()

    return step


def opacus_mode(mode: str) -> Method:
    """Opacus' own wrapper and optimizer of one of its gradient sample modes, on a fixed batch."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        from opacus.grad_sample.utils import wrap_model
        from opacus.optimizers import DPOptimizer

        wrapped = wrap_model(model, grad_sample_mode=mode, batch_first=True, loss_reduction="mean")
        optimizer = DPOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.01),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=MAX_GRAD_NORM,
            expected_batch_size=len(targets),
        )

        def step() -> None:
            F.cross_entropy(wrapped(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return method


def opacus_ghost(ghost: bool) -> Method:
    """Opacus' two-pass clipping, with ghost norms or with explicit gradients for the norms."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

        wrapped = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=MAX_GRAD_NORM, use_ghost_clipping=ghost, loss_reduction="mean"
        )
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(model.parameters(), lr=0.01),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=MAX_GRAD_NORM,
            expected_batch_size=len(targets),
            loss_reduction="mean",
        )
        criterion = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss(), loss_reduction="mean")

        def step() -> None:
            criterion(wrapped(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return method


METHODS: dict[str, Method] = {
    "plain": plain,
    "noisette BookKeeping": by_engine(noisette.BookKeeping),
    "noisette Reweight": by_engine(noisette.Reweight),
    "loop over examples": loop,
}
if find_spec("opacus"):
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message=".*backward hook.*")
    METHODS |= {
        "Opacus hooks": opacus_mode("hooks"),
        "Opacus functorch": opacus_mode("functorch"),
        "Opacus ew": opacus_mode("ew"),
        "Opacus fast": opacus_ghost(ghost=False),
        "Opacus ghost": opacus_ghost(ghost=True),
    }
