"""The methods by name: plain training, noisette's engines, one example after another, and Opacus."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from noisette._internal.keystream import SecretKey
from noisette.clipping import engines
from noisette.clipping.norms import Engine
from noisette.clipping.per_example import PerExampleClip
from noisette.lipschitz.bound import LipschitzBound
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


def opacus_methods() -> dict[str, Method]:
    """All modes by name; none where Opacus is not installed."""
    if not find_spec("opacus"):
        return {}
    return {
        **{f"Opacus-{mode}": _one_pass(mode) for mode in ("hooks", "functorch", "ew")},
        "Opacus-fast": _two_passes(ghost=False),
        "Opacus-ghost": _two_passes(ghost=True),
    }


def _one_pass(mode: str) -> Method:
    """Per-example gradients of every parameter, then clipping by the optimizer."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        opacus = import_module("opacus")
        wrapped = opacus.grad_sample.utils.wrap_model(
            _trainable(model), grad_sample_mode=mode, batch_first=True, loss_reduction="mean"
        )
        optimizer = opacus.optimizers.DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=MAX_GRAD_NORM,
            expected_batch_size=len(targets),
        )

        def step() -> None:
            nn.functional.cross_entropy(wrapped(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return method


def _two_passes(*, ghost: bool) -> Method:
    """A first pass for the norms, by ghost norms or by explicit gradients, and a second of the weighted losses."""

    def method(model: nn.Module, inputs: Tensor, targets: Tensor) -> Step:
        opacus = import_module("opacus")
        two_pass_loss = import_module("opacus.utils.fast_gradient_clipping_utils").DPLossFastGradientClipping
        wrapped = opacus.grad_sample.GradSampleModuleFastGradientClipping(
            _trainable(model), max_grad_norm=MAX_GRAD_NORM, use_ghost_clipping=ghost, loss_reduction="mean"
        )
        optimizer = opacus.optimizers.DPOptimizerFastGradientClipping(
            torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE),
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=MAX_GRAD_NORM,
            expected_batch_size=len(targets),
            loss_reduction="mean",
        )
        criterion = two_pass_loss(wrapped, optimizer, nn.CrossEntropyLoss(), loss_reduction="mean")

        def step() -> None:
            criterion(wrapped(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return method


def _trainable(model: nn.Module) -> nn.Module:
    """The model, with Opacus' own recurrent layer of the same weights in place of torch's."""
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
