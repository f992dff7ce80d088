"""What a model keeps of its inputs: put back after a look, refused where it would be saved with the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from noisette.errors import PrivacyError
from noisette.validation.probe_inputs import EXAMPLES, SEED, Call, batched, public_batch


def check_buffers(model: nn.Module, example: Call) -> None:
    """The state that is published with the weights must not know what came by."""
    left, other, fewer = (
        _state_after(model, example, seed, count)
        for seed, count in ((SEED, EXAMPLES), (SEED + 1, EXAMPLES), (SEED, EXAMPLES - 1))
    )
    if told := [
        name
        for name in sorted(left | other | fewer)
        if not all(_same(left.get(name), state.get(name)) for state in (other, fewer))
    ]:
        raise PrivacyError(
            f"the model keeps something of its inputs in {', '.join(told)}, which would be saved with the weights "
            "without any noise. Freeze what writes it (eval mode), or take it out of the model's state "
            "(register_buffer(..., persistent=False))"
        )


def _state_after(model: nn.Module, example: Call, seed: int, count: int) -> dict[str, Any]:
    """The state of the model after one call with the first of the public inputs that this seed draws."""
    with torch.random.fork_rng(), buffers_restored(model), torch.no_grad():
        torch.manual_seed(seed)
        call = batched(public_batch(example), lambda tensor: tensor[:count])
        torch.manual_seed(seed - seed % 10)  # the model's own random numbers are the same for both
        model(*call.args, **call.kwargs)
        trained = dict(model.named_parameters())
        return {name: deepcopy(value) for name, value in model.state_dict().items() if name not in trained}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)


@contextmanager
def buffers_restored(model: nn.Module) -> Iterator[Callable[[], None]]:
    """What puts the model's buffers back to what they are now; it is called at the end."""
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    def put_back() -> None:
        with torch.no_grad():
            for module, name, buffer, value in before:
                module._buffers[name] = buffer.copy_(value)

    try:
        yield put_back
    finally:
        put_back()
