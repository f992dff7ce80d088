"""Steps of Opacus in each of its modes. It is optional, so it is imported when a step of it is made."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks.steps import sgd

F = nn.functional


def methods() -> dict[str, sgd.Method]:
    """The modes of Opacus by name; none if it is not installed."""
    if not find_spec("opacus"):
        return {}
    return {
        **{f"Opacus-{mode}": _one_pass(mode) for mode in ("hooks", "functorch", "ew")},
        "Opacus-fast": _two_passes(ghost=False),
        "Opacus-ghost": _two_passes(ghost=True),
    }


def _one_pass(mode: str) -> sgd.Method:
    """Explicit per-example gradients of every parameter, clipped by the optimizer."""

    def method(model: nn.Module, data: sgd.Data) -> sgd.Step:
        opacus = import_module("opacus")
        wrapped = opacus.grad_sample.utils.wrap_model(
            _trainable(model), grad_sample_mode=mode, batch_first=True, loss_reduction="mean"
        )
        optimizer = opacus.optimizers.DPOptimizer(**_settings(wrapped, data))
        batches = _batches(data)

        def backward() -> None:
            inputs, targets = next(batches)
            F.cross_entropy(wrapped(inputs), targets).backward()

        return sgd.step_of(optimizer, backward)

    return method


def _two_passes(*, ghost: bool) -> sgd.Method:
    """A first backward pass for the norms, by ghost norms or explicit gradients, and a second for weighted losses."""

    def method(model: nn.Module, data: sgd.Data) -> sgd.Step:
        opacus = import_module("opacus")
        two_pass_loss = import_module("opacus.utils.fast_gradient_clipping_utils").DPLossFastGradientClipping
        wrapped = opacus.grad_sample.GradSampleModuleFastGradientClipping(
            _trainable(model), max_grad_norm=sgd.MAX_GRAD_NORM, use_ghost_clipping=ghost, loss_reduction="mean"
        )
        settings = _settings(wrapped, data)
        optimizer = opacus.optimizers.DPOptimizerFastGradientClipping(**settings, loss_reduction="mean")
        criterion = two_pass_loss(wrapped, optimizer, nn.CrossEntropyLoss(), loss_reduction="mean")
        batches = _batches(data)

        def backward() -> None:
            inputs, targets = next(batches)
            criterion(wrapped(inputs), targets).backward()

        return sgd.step_of(optimizer, backward)

    return method


def _batches(data: sgd.Data) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches by the loader and the sampler of Opacus, where batches are drawn."""
    loader = import_module("opacus.data_loader").DPDataLoader
    return data.batches(loader(TensorDataset(data.inputs, data.targets), sample_rate=data.sampling_rate))


def _settings(model: nn.Module, data: sgd.Data) -> dict[str, Any]:
    """The arguments that the optimizers of Opacus share."""
    return {
        "optimizer": torch.optim.SGD(model.parameters(), lr=sgd.LEARNING_RATE),
        "noise_multiplier": sgd.NOISE_MULTIPLIER,
        "max_grad_norm": sgd.MAX_GRAD_NORM,
        "expected_batch_size": data.size,
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
