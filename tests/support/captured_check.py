"""Compares the sums of a captured step with single examples, and with the step that is not captured."""

import copy
import itertools
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from captured_models import Batch, Loss, Model
from noisette import PerExampleClip
from noisette.capture.captured import _Timed

SIZES = (17, 17, 18, 17)  # rows of microbatches that one graph of 18 rows takes
BOUND = 0.1


def cast(batch: Batch, dtype: torch.dtype) -> Batch:
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}


def moved(model: nn.Module) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.02)


@torch.no_grad()
def copied(source: nn.Module, target: nn.Module) -> None:
    """Give a copy of a model its parameters and buffers, without what ``load_state_dict`` does besides."""
    values = itertools.chain(source.named_parameters(), source.named_buffers())
    others = dict(itertools.chain(target.named_parameters(), target.named_buffers()))
    for name, value in values:
        others[name].copy_(value)


def graphs_of(clip: PerExampleClip) -> list[_Timed]:
    sizes = [size for kind in clip._captured._kinds.values() for size in kind.captured._sizes.values()]
    return [timed for size in sizes for timed in size.graphs]


def assert_captured(clip: PerExampleClip, way: str = "graph", calls: int = 2) -> None:
    """Microbatches are captured, and that way was taken at least so often."""
    assert clip.capture_problems == ()
    assert sum(timed.calls for timed in graphs_of(clip) if timed.is_compiled == (way == "compiled")) >= calls


def sums_of(clip: PerExampleClip, loss: Loss, batch: Batch, cast_to: torch.dtype | None = None) -> Tensor:
    """The sums of all parameters as one vector in double precision."""
    with torch.autocast("cpu", cast_to) if cast_to else nullcontext():
        clip.accumulate(loss, **batch)
    return torch.cat([grad.double().flatten() for sum in clip.pop_sums() for grad in sum.grads])


def error_of(found: Tensor, expected: Tensor) -> float:
    """The norm of the difference, as a share of the norm."""
    assert expected.any()
    return float((found - expected).norm() / expected.norm())


def by_single_examples(model: nn.Module, loss: Loss, batch: Batch, bound: float) -> tuple[Tensor, Tensor]:
    """The clipped sum as one vector, and the norms, by one backward pass for each example, with the hooks of norms."""
    params, rows = [p for p in model.parameters() if p.requires_grad], []
    for i in range(len(next(iter(batch.values())))):
        value = loss(model, **{name: tensor[i : i + 1] for name, tensor in batch.items()})
        gradients = torch.autograd.grad(value.sum(), params, allow_unused=True, materialize_grads=True)
        rows.append(torch.cat([g.flatten() for g in gradients]))
    norms = torch.stack([row.norm() for row in rows])
    return (bound / norms).clamp(max=1) @ torch.stack(rows), norms


def check_exact(model: Model) -> float:
    """Sums of a captured step in double precision, with weights that change in between, against single examples."""
    private, errors = model.make().double(), []
    plain = copy.deepcopy(private)
    batches = [cast(model.batch(b), torch.float64) for b in SIZES]
    bound = float(by_single_examples(plain, model.loss, batches[0], 1.0)[1].median()) * 1.0001
    clip = PerExampleClip(private, bound, capture="graph")
    for batch in batches:
        found = sums_of(clip, model.loss, batch)
        copied(private, plain)
        errors.append(error_of(found, by_single_examples(plain, model.loss, batch, bound)[0]))
        moved(private)
    assert_captured(clip)
    return max(errors)


def both(model: Model, capture: Any) -> tuple[PerExampleClip, PerExampleClip]:
    private = model.make()
    eager = PerExampleClip(copy.deepcopy(private), BOUND, capture="eager")
    return PerExampleClip(private, BOUND, capture=capture), eager


def check_equal(model: Model, cast_to: torch.dtype | None = None, capture: Any = "graph") -> float:
    """Sums of a captured step in single precision against those of the same step in the ordinary way."""
    clip, eager = both(model, capture)
    errors = []
    for b in SIZES:
        batch = cast(model.batch(b), torch.float32)
        errors.append(error_of(sums_of(clip, model.loss, batch, cast_to), sums_of(eager, model.loss, batch, cast_to)))
        moved(clip.model)
        copied(clip.model, eager.model)
    assert_captured(clip, capture)
    return max(errors)


def check_same_draws(model: Model) -> float:
    """Sums of a captured step of a random model against those of the step itself, from one state of torch's generator.

    The examples fill the rows of the graph, so that both draw the same. Buffers are the same at the end, too.
    """
    clip, eager = both(model, "graph")
    batch = model.batch(6)
    states, found = [], []
    for each in (clip, eager):
        torch.manual_seed(1)
        found.append([sums_of(each, model.loss, batch) for _ in range(4)])
        states.append(torch.get_rng_state())
    assert torch.equal(*states)
    for one, two in zip(clip.model.buffers(), eager.model.buffers(), strict=True):
        torch.testing.assert_close(one, two)
    assert_captured(clip)
    return max(error_of(one, other) for one, other in zip(*found, strict=True))
