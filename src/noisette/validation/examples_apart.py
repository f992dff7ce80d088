"""Whether the loss of a batch is made of the losses of its examples, as ``accumulate`` computes them."""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np
import torch
from torch import Tensor, nn

from noisette.core.trace import Loss, Microbatch
from noisette.validation.deterministic import DisableRandomness
from noisette.validation.probe_inputs import SEED

_EXAMPLES = 3
_TOLERANCE, _OF_LOWER_PRECISION = 1e-3, 3e-2
_LOWER = {torch.bfloat16, torch.float16}


def warn_if_examples_meet(loss: Loss, model: nn.Module, batch: Microbatch) -> None:
    """Warn where the loss of public examples together is neither the sum nor the mean of their losses.

    Nothing is refused: ``accumulate`` shows each example to the loss alone, whatever it would do with several. A loss
    is not examined if it cannot be called with several examples, is random, or has no finite value on public inputs of
    the batch's shapes and types. Parameters, gradients, buffers and the states of random generators stay as they are.
    """
    values: tuple[Tensor, Tensor] | None = None
    with suppress(Exception):  # whatever the loss raises for inputs that it was not made for
        values = _together_and_alone(loss, model, batch)
    if values is None or _agree(*values, _tolerance(model, batch)):
        return
    together, alone = values
    warnings.warn(
        f"the loss of {_EXAMPLES} public examples together is {together.sum():.4g}, but alone their losses are "
        f"{', '.join(f'{value:.4g}' for value in alone.tolist())}: your loss looks at other examples of its batch. "
        "accumulate shows it each example alone: what it takes from the batch, it now takes from that example",
        stacklevel=3,
    )


def warn_of_backward_hooks(model: nn.Module) -> None:
    """Warn of backward hooks on modules, which PyTorch does not call for a vectorised loss."""
    hooked = [
        name or "the model" for name, part in model.named_modules() if part._backward_hooks or part._backward_pre_hooks
    ]
    if hooked:
        warnings.warn(
            f"backward hooks of {', '.join(hooked)} are not called by accumulate: PyTorch has none inside of vmap. "
            "Change gradients in the loss instead, or in a torch.autograd.Function with a rule for vmap",
            stacklevel=3,
        )


def _together_and_alone(loss: Loss, model: nn.Module, batch: Microbatch) -> tuple[Tensor, Tensor] | None:
    """The losses of public examples in one batch, and each alone (n,); ``None`` where they are random or not finite."""
    model = copy.deepcopy(model, {id(p): p for p in model.parameters()})  # with buffers of its own
    with torch.no_grad(), _generators_restored(batch.tensors), warnings.catch_warnings(), DisableRandomness():
        warnings.simplefilter("ignore")
        inputs = [_public(tensor) for tensor in batch.tensors]

        def value(rows: slice) -> Tensor:
            one = batch.with_tensors([tensor[rows] for tensor in inputs])
            return loss(model, *one.args, **one.kwargs).double().cpu()

        together, again = value(slice(None)), value(slice(None))
        alone = torch.stack([value(slice(i, i + 1)).sum() for i in range(_EXAMPLES)])
    usable = bool(torch.isfinite(together).all() and torch.isfinite(alone).all()) and torch.equal(together, again)
    return (together, alone) if usable else None


def _public(tensor: Tensor) -> Tensor:
    """Random inputs of these shapes and types: normal numbers, or whole numbers from zero to one."""
    shape = (_EXAMPLES, *tensor.shape[1:])
    with torch._C.DisableTorchFunction():
        if tensor.is_floating_point() or tensor.is_complex():
            return torch.randn(shape, dtype=tensor.dtype, device=tensor.device)
        return torch.randint(0, 2, shape, device=tensor.device).to(tensor.dtype)


def _agree(together: Tensor, alone: Tensor, tolerance: float) -> bool:
    """Whether the loss of the batch is the sum or the mean of the losses, or one loss for each example."""
    if together.numel() > 1:
        return together.shape == alone.shape and torch.allclose(together, alone, tolerance, _TOLERANCE)
    sums = (alone.sum(), alone.mean())
    return any(torch.allclose(together.sum(), value, tolerance, _TOLERANCE) for value in sums)


def _tolerance(model: nn.Module, batch: Microbatch) -> float:
    """The relative difference of two losses that rounding may make."""
    is_lower = any(tensor.dtype in _LOWER for tensor in (*model.parameters(), *batch.tensors))
    return _OF_LOWER_PRECISION if is_lower else _TOLERANCE


@contextmanager
def _generators_restored(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Within it the generators of the processor and of the tensors' devices start from a fixed seed.

    Afterwards they are as they were. No other device is seeded, since a secret seed of a batch could not be put back.
    """
    devices = {tensor.device for tensor in tensors if tensor.device.type == "cuda"}
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            torch.default_generator.manual_seed(SEED)
            for device in devices:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(SEED)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
