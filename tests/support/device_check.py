"""Compares what an engine computes on a device with single examples in double precision on the processor."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from engine_check import NOT_FOR_VMAP, assert_close, cast, measured
from model_cases import Case, Inputs
from noisette import PerExampleClip
from noisette.clipping.engines import Vmap
from noisette.core.clip import Engine
from oracle import Loss, example_gradients

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}  # a GPU adds up in an order of its own


def on(device: torch.device, inputs: Inputs) -> Inputs:
    return tuple(x.to(device) for x in inputs)


def check_on(device: torch.device, case: Case, engines: Sequence[Engine], dtype: torch.dtype, b: int = 5) -> None:
    """Norms and sums on the device are the oracle's, with some examples clipped; those without a watch likewise."""
    model, inputs = case.model().to(dtype), cast(case.inputs(b), dtype)
    gradients = example_gradients(model, case.loss, inputs)
    bound = float(torch.tensor(gradients.norms).median()) + 1e-3
    truth = gradients.clipped(bound)
    model = copy.deepcopy(model).to(device)
    for engine in engines:
        if isinstance(engine, Vmap) and case.name in NOT_FOR_VMAP:
            continue
        norms, sums = measured(model, case.loss, on(device, inputs), bound, engine)
        torch.testing.assert_close(norms.cpu(), truth.norms, rtol=TOLERANCE[dtype], atol=1e-13)
        assert all(g.device.type == device.type for g in sums.values()), engine
        assert_close(sums, truth, bound, TOLERANCE[dtype])
    clip = PerExampleClip(model, bound, capture="eager")
    assert_close(accumulated(clip, case.loss, on(device, inputs)), truth, bound, TOLERANCE[dtype])


def accumulated(clip: PerExampleClip, loss: Loss, inputs: Inputs) -> dict[str, Tensor]:
    """The clipped sum of one microbatch by ``accumulate``."""
    clip.accumulate(loss, *inputs)
    [total] = clip.pop_sums()
    return dict(zip(clip.parameters, total.grads, strict=True))


def both_ways(device, model: nn.Module, loss: Loss, inputs: Inputs, dtype: torch.dtype, *engines: Engine) -> None:
    """Engines give the oracle's clipped sum of this model and these inputs on the device."""
    check_on(device, Case("model", lambda: model, lambda b: inputs, loss), engines, dtype)
