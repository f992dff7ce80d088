"""The methods by name: plain training, noisette's engines, one example after another, and Opacus."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from noisette._internal.keystream import SecretKey
from noisette.bench.peers import opacus_methods
from noisette.bench.step import LEARNING_RATE, MAX_GRAD_NORM, NOISE_MULTIPLIER, Method, Step
from noisette.clipping import engines
from noisette.clipping.norms import Engine
from noisette.clipping.per_example import PerExampleClip
from noisette.lipschitz.bound import LipschitzBound
from noisette.mechanisms.gaussian import GaussianRelease
from noisette.nn.lipschitz import TauCrossEntropy

F = nn.functional


def plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """Ordinary SGD on the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def by_engine(engine: Callable[[], Engine]) -> Method:
    """Clipping by an engine of noisette, noise from the secret key, SGD."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        clip = PerExampleClip(model, MAX_GRAD_NORM, engine=engine())
        release = GaussianRelease(SecretKey(), NOISE_MULTIPLIER, len(targets))
        names = {id(p): name for name, p in clip.parameters.items()}
        steps = iter(range(2**31))

        def step() -> None:
            clip.backward(F.cross_entropy(model(inputs), targets, reduction="none"))
            release(clip.pop_sums(), names, step=next(steps))
            optimizer.step()
            optimizer.zero_grad()

        return step

    return method


def clipless(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """Bounds of a Lipschitz network instead of clipping, noise from the secret key, SGD, projection."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    loss = TauCrossEntropy(tau=1.0)
    bound = LipschitzBound(model, loss=loss, input_shape=inputs.shape[1:])
    release = GaussianRelease(SecretKey(), NOISE_MULTIPLIER, len(targets))
    names = {id(p): name for name, p in bound.parameters.items()}
    steps = iter(range(2**31))

    def step() -> None:
        bound.backward(loss(model(inputs), targets))
        release(bound.pop_sums(), names, step=next(steps))
        optimizer.step()
        bound.after_step()
        optimizer.zero_grad()

    return step


def nxbp(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """One example after another, forward and backward, in plain PyTorch (nxBP in Lee & Kifer 2020)."""
    params = list(model.parameters())

    def step() -> None:
        total = [torch.zeros_like(p) for p in params]
        for x, y in zip(inputs.split(1), targets.split(1), strict=True):
            gradients = torch.autograd.grad(F.cross_entropy(model(x), y), params)
            factor = (MAX_GRAD_NORM / nn.utils.get_total_norm(gradients)).clamp(max=1.0)
            for t, g in zip(total, gradients, strict=True):
                t.addcmul_(g, factor)
        with torch.no_grad():
            for p, t in zip(params, total, strict=True):
                noised = t.add_(torch.randn_like(t), alpha=MAX_GRAD_NORM * NOISE_MULTIPLIER)
                p.add_(noised, alpha=-LEARNING_RATE / len(targets))

    return step


ENGINES = ("BookKeeping", "TwoPass", "MultiLoss", "PerExampleLoop", "Vmap")
METHODS: dict[str, Method] = {
    "plain": plain,
    **{name: by_engine(getattr(engines, name)) for name in ENGINES},
    "Clipless": clipless,
    "nxBP": nxbp,
    **opacus_methods(),
}
