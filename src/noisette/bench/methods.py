"""The measured methods by name: plain training, the engines of noisette, one example after another, and Opacus.

Opacus is optional, so it is imported when a step of it is made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from noisette._internal.keystream import SecretKey
from noisette.clipping import engines
from noisette.clipping.norms import Engine
from noisette.clipping.per_example import PerExampleClip
from noisette.lipschitz.bound import LipschitzBound
from noisette.mechanisms.bounded_sum import GradientBound
from noisette.mechanisms.gaussian import GaussianRelease
from noisette.nn.lipschitz import TauCrossEntropy

F = nn.functional

Step = Callable[[], None]
Method = Callable[[nn.Module, Tensor, Tensor], Step]  # (model, inputs, targets) -> one training step on them

LEARNING_RATE = 0.01
MAX_GRAD_NORM = 1.0
NOISE_MULTIPLIER = 1.0


def plain(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """Ordinary SGD on the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    return _step(optimizer, lambda: F.cross_entropy(model(inputs), targets).backward())


def by_engine(engine: Callable[[], Engine]) -> Method:
    """Clipping by an engine of noisette, noise from the secret key, SGD."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        clip = PerExampleClip(model, MAX_GRAD_NORM, engine=engine())
        return _private_step(clip, lambda: F.cross_entropy(model(inputs), targets, reduction="none"), len(targets))

    return method


def clipless(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
    """Bounds of a Lipschitz network instead of clipping, noise from the secret key, SGD, projection."""
    loss = TauCrossEntropy(tau=1.0)
    bound = LipschitzBound(model, loss=loss, input_shape=inputs.shape[1:])
    return _private_step(bound, lambda: loss(model(inputs), targets), len(targets))


def _private_step(bound: GradientBound, losses: Callable[[], Tensor], batch_size: int) -> Step:
    """One step of noisette: bounded sum, noise, SGD, and what the bound does after a step."""
    optimizer = torch.optim.SGD(list(bound.parameters.values()), lr=LEARNING_RATE)
    release = GaussianRelease(SecretKey(), NOISE_MULTIPLIER, batch_size)
    names = {id(p): name for name, p in bound.parameters.items()}
    steps = itertools.count()

    def step() -> None:
        bound.backward(losses())
        release(bound.pop_sums(), names, step=next(steps))
        optimizer.step()
        bound.after_step()
        optimizer.zero_grad()

    return step


def _step(optimizer: torch.optim.Optimizer, backward: Callable[[], object]) -> Step:
    """One step of an optimizer on the gradients of ``backward``."""

    def step() -> None:
        backward()
        optimizer.step()
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


def opacus_methods() -> dict[str, Method]:
    """The modes of Opacus by name; none if it is not installed."""
    if not find_spec("opacus"):
        return {}
    return {
        **{f"Opacus-{mode}": _one_pass(mode) for mode in ("hooks", "functorch", "ew")},
        "Opacus-fast": _two_passes(ghost=False),
        "Opacus-ghost": _two_passes(ghost=True),
    }


def _one_pass(mode: str) -> Method:
    """Explicit per-example gradients of every parameter, clipped by the optimizer."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        opacus = import_module("opacus")
        wrapped = opacus.grad_sample.utils.wrap_model(
            _trainable(model), grad_sample_mode=mode, batch_first=True, loss_reduction="mean"
        )
        optimizer = opacus.optimizers.DPOptimizer(**_opacus_settings(wrapped, targets))
        return _step(optimizer, lambda: F.cross_entropy(wrapped(inputs), targets).backward())

    return method


def _two_passes(*, ghost: bool) -> Method:
    """A first backward pass for the norms, by ghost norms or explicit gradients, and a second for weighted losses."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        opacus = import_module("opacus")
        two_pass_loss = import_module("opacus.utils.fast_gradient_clipping_utils").DPLossFastGradientClipping
        wrapped = opacus.grad_sample.GradSampleModuleFastGradientClipping(
            _trainable(model), max_grad_norm=MAX_GRAD_NORM, use_ghost_clipping=ghost, loss_reduction="mean"
        )
        settings = _opacus_settings(wrapped, targets)
        optimizer = opacus.optimizers.DPOptimizerFastGradientClipping(**settings, loss_reduction="mean")
        criterion = two_pass_loss(wrapped, optimizer, nn.CrossEntropyLoss(), loss_reduction="mean")
        return _step(optimizer, lambda: criterion(wrapped(inputs), targets).backward())

    return method


def _opacus_settings(model: nn.Module, targets: Tensor) -> dict[str, Any]:
    """The arguments that the optimizers of Opacus share."""
    return {
        "optimizer": torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        "noise_multiplier": NOISE_MULTIPLIER,
        "max_grad_norm": MAX_GRAD_NORM,
        "expected_batch_size": len(targets),
    }


def _trainable(model: nn.Module) -> nn.Module:
    """The model, with the recurrent layers of Opacus, of the same weights, in place of those of torch."""
    layers = import_module("opacus.layers")
    own = {nn.RNN: layers.DPRNN, nn.LSTM: layers.DPLSTM, nn.GRU: layers.DPGRU}
    for name, module in list(model.named_children()):
        if isinstance(module, nn.RNNBase):
            layer = own[type(module)](module.input_size, module.hidden_size, batch_first=module.batch_first)
            layer.load_state_dict(module.state_dict())
            setattr(model, name, layer.to(next(module.parameters()).device))
    return model


ENGINES = ("BookKeeping", "TwoPass", "MultiLoss", "PerExampleLoop", "Vmap")
METHODS: dict[str, Method] = {
    "plain": plain,
    **{name: by_engine(getattr(engines, name)) for name in ENGINES},
    "Clipless": clipless,
    "nxBP": nxbp,
    **opacus_methods(),
}
