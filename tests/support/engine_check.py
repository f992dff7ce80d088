"""Compares the norms and the clipped sum of an engine with the oracle's, for a model given as data."""

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from model_cases import Case, Inputs
from noisette.clipping.engines import BookKeeping, OneByOneWarning, PerExampleLoop, ReweightGP, Vmap
from noisette.core.clip import ClippedSum, Clipping, Engine
from noisette.core.trace import ForwardPass
from noisette.errors import PrivacyError
from noisette.run.per_example import PerExampleClip
from oracle import Clipped, example_gradients

ENGINES: list[Engine] = [BookKeeping(), ReweightGP(), PerExampleLoop(), Vmap(chunk_size=3)]
every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
# What torch.func cannot differentiate, and why.
NOT_FOR_VMAP = {"data written into a weight": "a tensor without example axis cannot be written into"}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)


@dataclass
class Watched:
    engine: Engine
    norms: list[Tensor] = field(default_factory=list)

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        def factors(norms: Tensor) -> Tensor:
            self.norms.append(norms.flatten())
            return clipping.factors(norms)

        return self.engine.clipped_sum(forward, parameters, replace(clipping, other_factors=factors))


def measured(model, loss, inputs, bound, engine) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms and clipped sum of one microbatch, which must be vectorised."""
    watched = Watched(engine)
    clip = PerExampleClip(model, bound, engine=watched, capture="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OneByOneWarning)
        clip.accumulate(loss, *inputs)
    [total] = clip.pop_sums()
    assert total.bound == bound
    sums = dict(zip(clip.parameters, (g.double() for g in total.grads), strict=True))
    return torch.cat(watched.norms).double(), sums


def assert_close(sums: dict[str, Tensor], truth: Clipped, bound: float, tolerance: float) -> None:
    scale = float(truth.norms.clamp(max=bound).norm())  # not the sum's own, in which examples may cancel
    assert sums.keys() == truth.sums.keys()
    for name, expected in truth.sums.items():
        assert float((sums[name].double().cpu() - expected).norm()) <= tolerance * scale, name


def check(case: Case, *engines: Engine, b: int, dtype: torch.dtype) -> None:
    """Norms and sums are the oracle's with none, some and all of b examples clipped; the model is left as it was."""
    model, inputs = case.model().to(dtype), cast(case.inputs(b), dtype)
    gradients = example_gradients(model, case.loss, inputs)
    norms = torch.tensor(gradients.norms, dtype=torch.float64)
    every = (norms[norms > 0].min() if norms.any() else 1) / 1000
    bounds = [float(2 * norms.max() + 1), float(norms.median() + 1e-3), float(every)]
    truths = {bound: gradients.clipped(bound) for bound in bounds}
    before, tolerance = copy.deepcopy(model.state_dict()), TOLERANCE[dtype]
    for engine in engines:
        if isinstance(engine, Vmap) and case.name in NOT_FOR_VMAP:
            with pytest.raises(PrivacyError, match=r"torch\.func cannot differentiate"):
                measured(model, case.loss, inputs, 1.0, engine)
            continue
        for bound, truth in truths.items():
            found, sums = measured(model, case.loss, inputs, bound, engine)
            torch.testing.assert_close(found, truth.norms, rtol=tolerance, atol=1e-14)  # of zero: upper bounds
            assert_close(sums, truth, bound, tolerance)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name]), engine
        assert all(p.grad is None for p in model.parameters()), engine
