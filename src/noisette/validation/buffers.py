"""Buffers of a model: restored after a check, and refused if they store information about inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils._pytree import tree_flatten

from noisette.core.randomness import seed_torch
from noisette.errors import PrivacyError
from noisette.validation.probe_inputs import EXAMPLES, SEED, Call, map_batched, public_batch


def check_buffers(model: nn.Module, example: Call) -> None:
    """The state that is published with the weights does not depend on the inputs or on their number.

    A run puts such state back anyway (:class:`noisette.run.seal.Seal`), so a model that needs it would not learn it.
    Floating-point state that each call advances, whatever the inputs, stands still for the same reason: a warning says
    so. Counters may stand still.

    Raises:
        PrivacyError: naming the entries of the state that do.
    """
    reference, other_inputs, fewer_inputs = (
        _state_after(model, example, seed, count)
        for seed, count in ((SEED, EXAMPLES), (SEED + 1, EXAMPLES), (SEED, EXAMPLES - 1))
    )
    if changed := [
        name
        for name in sorted(reference | other_inputs | fewer_inputs)
        if not all(_same(reference.get(name), state.get(name)) for state in (other_inputs, fewer_inputs))
    ]:
        raise PrivacyError(
            f"the model stores information about its inputs in {', '.join(changed)}, which would be saved with the "
            "weights without noise. Put the module that writes it into eval mode, compute it from public data between "
            "batches, or remove it from the model"
        )
    if moving := [
        name
        for name, buffer in model.named_buffers()
        if buffer.is_floating_point()
        and buffer.dim() > 0  # a counter of calls may stand still
        and not _same(reference.get(name, buffer), buffer)
        and not _is_advanced(model.get_submodule(name.rpartition(".")[0]))
    ]:
        warnings.warn(
            f"each call of the model changes {', '.join(moving)}. In a private run this is put back before each "
            "microbatch and at each release, and so stands still: change it between batches, in your loop",
            stacklevel=2,
        )


def _is_advanced(module: nn.Module) -> bool:
    """Whether a run advances the state of this module once a step: a spectral norm of torch."""
    return isinstance(module, _SpectralNorm) or any(
        isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()
    )


def _state_after(model: nn.Module, example: Call, seed: int, count: int) -> dict[str, Any]:
    """The model's state, without its parameters, after one call with the first ``count`` public inputs of this seed."""
    with torch.random.fork_rng(), buffers_restored(model), torch.no_grad():
        seed_torch(seed)
        call = map_batched(public_batch(example), lambda tensor: tensor[:count])
        seed_torch(seed - seed % 10)  # the same random numbers inside the model for both seeds
        model(*call.args, **call.kwargs)
        trained = dict(model.named_parameters())
        return {name: deepcopy(value) for name, value in model.state_dict().items() if name not in trained}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return False
    (leaves, form), (others, other_form) = tree_flatten(one), tree_flatten(other)
    if leaves == [one]:  # no container
        return bool(one == other)
    return form == other_form and all(map(_same, leaves, others))


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Restore the model's buffers at the end, both the tensors and their values.

    Yields:
        A function that restores them earlier.
    """
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    def restore() -> None:
        with torch.no_grad():
            for module, name, buffer, value in before:
                now = module._buffers.get(name)
                if now is not None and now.dtype is not buffer.dtype and now.shape == value.shape:
                    now.copy_(value)  # a copy in another precision, for as long as the model computes in that
                else:
                    module._buffers[name] = buffer.copy_(value)

    try:
        yield restore
    finally:
        restore()
