"""Whether the clipped sum of a model is exact: against a loop over single examples by plain autograd."""

from __future__ import annotations

import operator
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from noisette import OneByOneWarning, PerExampleClip, PrivacyError, RdpAccountant, privatize
from noisette.core.trees import tensors

F = nn.functional
Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
WAYS = "vectorised", "one by one"


@dataclass(frozen=True)
class Entry:
    """A model of the zoo: what it is called, of which library it is, how it is made, with or without its dropout."""

    name: str
    library: str
    make: Callable[[bool], nn.Module]
    batch: Callable[[nn.Module], dict[str, Tensor]]
    loss: Loss


@dataclass(frozen=True)
class Result:
    """What became of a model: exact, wrong, refused, crashed, or not built (its own code fails on one example)."""

    outcome: str
    message: str = ""
    error: float | None = None
    dtype: str = ""
    way: str = ""  # vectorised, or one by one
    why: str = ""  # what the warning says of one by one
    trains: bool | None = None  # with its default dropout


def sum_of_outputs(model: nn.Module, batch: Batch) -> Tensor:
    """The loss that the model computes itself, else a fixed combination of all that it returns."""
    output = model(**batch)
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own.sum()
    return combined(output)


def combined(output: object) -> Tensor:
    """A fixed combination of all outputs that have gradients."""
    found = [tensor for tensor in _outputs(output) if tensor.is_floating_point()]
    parts = [(part * torch.arange(part.numel()).cos().reshape(part.shape).to(part.dtype)).mean() for part in found]
    return torch.stack([part.double() for part in parts]).sum()


def _outputs(output: object) -> list[Tensor]:
    return tensors(dict(output) if isinstance(output, Mapping) else output)


def check(entry: Entry) -> Result:
    """Compare in double precision, or in single precision where the model cannot run in double, then train two steps.

    A model is exact as its own dropout leaves it: what a run then refuses, or takes one by one, counts.
    """
    torch.manual_seed(0)
    try:
        model, batch, dtype = _runs(entry)
        wanted, bound = clipped_by_loop(model, batch, entry.loss)
    except Exception as error:
        return Result("not built", f"{type(error).__name__}: {str(error).strip()[:300]}")
    result = _compared(entry, model, batch, wanted, bound, dtype)
    return _trained(entry, result) if result.outcome == "exact" else result


def _runs(entry: Entry) -> tuple[nn.Module, dict[str, Tensor], torch.dtype]:
    """The model and a batch in the best precision in which one example goes through."""
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        model = entry.make(False).to(dtype)
        _enliven(model)
        batch = as_dtype(entry.batch(model), dtype)
        try:
            gradients = plain_gradients(model, one(batch, 0), entry.loss)
        except RuntimeError:
            if dtype is torch.float32:
                raise
            continue
        if dtype is torch.float32 or all(bool(g.isfinite().all()) for g in gradients):
            return model, batch, dtype
    raise AssertionError


def _enliven(model: nn.Module) -> None:
    """Parameters that start as zero or one get other values, so that no gradient is zero for that reason."""
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad and p.is_floating_point() and p.numel() > 1 and bool((p == p.flatten()[0]).all()):
                p.add_(torch.randn_like(p) * 0.05)


def as_dtype(batch: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in batch.items()}


def one(batch: Mapping[str, Tensor], i: int) -> dict[str, Tensor]:
    return {name: tensor[i : i + 1] for name, tensor in batch.items()}


def weights(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def plain_gradients(model: nn.Module, batch: Batch, loss: Loss) -> list[Tensor]:
    """The gradients that ``backward()`` leaves, which some models call themselves; nothing stays in ``.grad``."""
    model.zero_grad()
    loss(model, batch).backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in weights(model)]
    model.zero_grad()
    return gradients


def clipped_by_loop(model: nn.Module, batch: Batch, loss: Loss) -> tuple[list[Tensor], float]:
    """The clipped sum from the gradient of each example alone; clips at nine tenths of the median norm.

    Hooks on parameters change the sum, as they change what a run releases.
    """
    hooks = [p._backward_hooks or {} for p in weights(model)]
    kept, rows = list(map(dict, hooks)), []
    for each in hooks:
        each.clear()
    for i in range(len(next(iter(batch.values())))):
        with _contiguous_batch_norm():
            rows.append(plain_gradients(model, one(batch, i), loss))
    for each, own in zip(hooks, kept, strict=True):
        each.update(own)
    norms = [float(torch.stack([g.double().norm() for g in row]).norm()) for row in rows]
    bound = 0.9 * sorted(norms)[len(norms) // 2]
    if not 0 < bound < float("inf"):
        raise ValueError(f"the norms of the gradients are {norms}")
    factors = [min(1.0, bound / norm) if norm else 1.0 for norm in norms]
    columns = zip(*rows, strict=True)
    sums = [torch.stack(list(map(operator.mul, factors, column))).sum(0) for column in columns]
    return [reduce(lambda g, hook: hook(g), own.values(), g) for g, own in zip(sums, kept, strict=True)], bound


@contextmanager
def _contiguous_batch_norm() -> Iterator[None]:
    """Within it a fixed batch norm gets input and gradient contiguous: torch's own kernel is wrong for one image else.

    torch 2.13 on a processor: one image (1, c, h, w) in the order of rows, its gradient with the channels last, or the
    other way around.
    """
    original = F.batch_norm

    def batch_norm(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        output = original(x.contiguous(), *args, **kwargs)
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient.contiguous())
        return output.clone()  # a hook stays where it is when the output is written into

    F.batch_norm = batch_norm
    try:
        yield
    finally:
        F.batch_norm = original


def released(model: nn.Module, batch: Batch, loss: Loss, bound: float, steps: int = 1) -> tuple[list[Tensor], str]:
    """The clipped sum that a run over all examples releases at its last step, with noise of a 10^12th of the bound.

    And why it took the examples one by one; nothing where it did not.
    """
    examples = len(next(iter(batch.values())))
    clip = PerExampleClip(model, bound, capture="eager")
    optimizer = torch.optim.SGD(weights(model), lr=0.0)
    try:
        with (
            warnings.catch_warnings(record=True) as said,
            privatize(
                *(clip, optimizer, dict(batch)),
                **{"sampling_rate": 1.0, "expected_batch_size": examples, "steps": steps, "noise_multiplier": 1e-12},
                accountant=RdpAccountant(),
            ) as run,
        ):
            warnings.simplefilter("always")
            for drawn in run.batches():
                for part in drawn.microbatches(examples):
                    run.accumulate(loss, part)
                optimizer.step()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad * examples for p in weights(model)]
    finally:
        clip.close()
        optimizer.zero_grad()  # a run starts without gradients
    return gradients, next((str(each.message) for each in said if issubclass(each.category, OneByOneWarning)), "")


def _compared(
    entry: Entry, model: nn.Module, batch: Batch, wanted: list[Tensor], bound: float, dtype: torch.dtype
) -> Result:
    try:
        found, why = released(model, batch, entry.loss, bound)
    except PrivacyError as error:
        return Result("refused", str(error)[:600])
    except Exception as error:
        return Result("crashed", f"{type(error).__name__}: {str(error)[:600]}")
    error = relative_error(found, wanted)
    kind = str(dtype).removeprefix("torch.")
    if error <= _tolerance(model, dtype):
        return Result("exact", error=error, dtype=kind, way=WAYS[bool(why)], why=why)
    again, _ = clipped_by_loop(model, batch, entry.loss)
    if relative_error(again, wanted) > 1e-12:
        if not model.training:
            return Result("random", f"two loops over the examples differ by {relative_error(again, wanted):.1e}")
        model.eval()
        wanted, bound = clipped_by_loop(model, batch, entry.loss)
        return _compared(entry, model, batch, wanted, bound, dtype)
    return Result("wrong", f"relative error {error:.1e}", error, kind)


def _tolerance(model: nn.Module, dtype: torch.dtype) -> float:
    """Many models compute parts in single precision, whatever their dtype."""
    return 1e-6 if dtype is torch.float64 else 5e-4


def relative_error(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The norm of the difference, relative to that of the sum."""
    difference = torch.stack([(f.double() - w.double()).norm() for f, w in zip(found, wanted, strict=True)]).norm()
    return float(difference / torch.stack([w.double().norm() for w in wanted]).norm())


def _trained(entry: Entry, exact: Result) -> Result:
    """Whether two steps go through with the default dropout, in single precision, and in which way."""
    try:
        torch.manual_seed(0)
        model = entry.make(True).to(torch.float32)
        batch = as_dtype(entry.batch(model), torch.float32)
        plain_gradients(model, one(batch, 0), entry.loss)
    except Exception as error:
        return replace(exact, trains=False, message=f"with dropout: {type(error).__name__}: {str(error)[:500]}")
    try:
        sums, why = released(model, batch, entry.loss, 1.0, steps=2)
    except PrivacyError as error:
        return Result("refused", f"with dropout: {str(error)[:600]}")
    except Exception as error:
        return Result("crashed", f"with dropout: {type(error).__name__}: {str(error)[:600]}")
    why = exact.why or why
    return replace(exact, trains=all(bool(g.isfinite().all()) for g in sums), way=WAYS[bool(why)], why=why)


SIZES = 16, 32


def times(entry: Entry) -> dict[str, tuple[float, float]]:
    """How long batches of these sizes take, against a plain step of the whole batch, in times of one thread.

    The clipped sum, and a plain step for each example.
    """
    return {str(size): _ratios(entry, size) for size in SIZES}


def _ratios(entry: Entry, size: int) -> tuple[float, float]:
    torch.manual_seed(0)
    model, parts = entry.make(False), list[dict[str, Tensor]]()
    with patch.object(torch, "manual_seed"):  # each call draws other examples
        while sum(len(next(iter(part.values()))) for part in parts) < size:
            parts.append(entry.batch(model))
    batch = {name: torch.cat([part[name] for part in parts])[:size] for name in parts[0]}
    clip = PerExampleClip(model, 1.0, capture="eager")

    def private() -> None:
        clip.accumulate(entry.loss, batch)
        clip.pop_sums()

    def each() -> None:
        for k in range(size):
            plain_gradients(model, one(batch, k), entry.loss)

    plain = _seconds(lambda: plain_gradients(model, batch, entry.loss))
    try:
        return round(_seconds(private) / plain, 1), round(_seconds(each) / plain, 1)
    finally:
        clip.close()


def _seconds(step: Callable[[], object]) -> float:
    """The median of five calls, after one."""
    step()
    found = []
    for _ in range(5):
        start = time.process_time()
        step()
        found.append(time.process_time() - start)
    return median(found)
