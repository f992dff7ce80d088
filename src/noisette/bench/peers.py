"""The step of Opacus in all its modes, on a fixed batch; recurrent layers in the form that it can train."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from noisette.bench.step import LEARNING_RATE, MAX_GRAD_NORM, NOISE_MULTIPLIER, Method, Step

# Opacus is not needed to use noisette, so it is imported where a step of it is made.


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
