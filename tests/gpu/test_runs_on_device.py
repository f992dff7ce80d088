"""Whole runs: memory that runs out, checkpoints that move to the processor, and nothing that waits for the device."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import noisette
import pretend_device
from noisette import PerExampleClip, PrivateRun, privatize
from noisette.clipping.engines import BookKeeping
from noisette.core.backward import ForwardPass
from noisette.core.clip import Clipping

F = nn.functional
RECORDS = 48


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def small(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4))


def records(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.randn(RECORDS, 6).to(device), (torch.arange(RECORDS) % 4).to(device)


def run_of(clip: PerExampleClip, optimizer: torch.optim.Optimizer, data: Any, **more: Any) -> PrivateRun:
    settings = {"expected_batch_size": RECORDS, "sampling_rate": 1.0, "steps": 6, "noise_multiplier": 1e-9}
    return privatize(clip, optimizer, data, **{**settings, **more})


def steps(run: PrivateRun, size: int | str = 16, most: int = 100) -> Iterator[None]:
    for _, batch in zip(range(most), run.batches(), strict=False):
        for x, y in batch.microbatches(size):  # pyright: ignore[reportArgumentType]
            run.accumulate(loss, x, y)
        run.optimizer.step()
        yield


@pytest.mark.parametrize("held", ["on the device", "on the processor"])
def test_a_run_trains_as_on_the_processor(any_device: torch.device, held: str) -> None:
    """With hardly any noise, all records in each batch, and records on either side."""
    torch.manual_seed(5)
    data = records(torch.device("cpu"))
    trained = []
    for place in (torch.device("cpu"), any_device):
        torch.manual_seed(6)
        model = small().to(place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        given = tuple(x.to(place) for x in data) if held == "on the device" else data
        with run_of(PerExampleClip(model, 1.0), optimizer, given) as run:
            for batch in run.batches():
                for x, y in batch.microbatches(16):
                    run.accumulate(loss, x.to(place), y.to(place))
                optimizer.step()
        assert all(p.device.type == place.type for p in model.parameters())
        trained.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-3, atol=1e-4)


def test_a_checkpoint_of_the_device_is_resumed_on_the_processor(any_device: torch.device, tmp_path: Path) -> None:
    torch.manual_seed(5)
    data = records(torch.device("cpu"))
    model = small().to(any_device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ledger = noisette.Ledger(tmp_path / "ledger.jsonl")
    with run_of(PerExampleClip(model, 1.0), optimizer, data, ledger=ledger) as run:
        for batch in run.batches():
            for x, y in batch.microbatches(16):
                run.accumulate(loss, x.to(any_device), y.to(any_device))
            optimizer.step()
            if run.steps_taken == 3:
                break
        run.save(tmp_path / "checkpoint")
    ledger.close()
    here = small()
    other = torch.optim.AdamW(here.parameters(), lr=0.01)
    with PrivateRun.resume(tmp_path / "checkpoint", PerExampleClip(here, 1.0), other, data) as resumed:
        for p, q in zip(here.parameters(), model.parameters(), strict=True):
            assert torch.equal(p, q.detach().cpu())
            for key, value in optimizer.state[q].items():
                assert torch.equal(other.state[p][key], value.cpu()), key
        assert resumed.steps_taken == 3
        for _ in steps(resumed):
            pass
        assert resumed.steps_taken == 6


class Hungry:
    """An engine for which memory runs out where a microbatch has more examples than these."""

    def __init__(self, most: int) -> None:
        self._most = most

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> Any:
        if len(forward.losses) > self._most:
            raise torch.OutOfMemoryError(f"{len(forward.losses)} examples")
        return BookKeeping().clipped_sum(forward, parameters, clipping)


WIDE = 2**16  # floats of one example's activation, so 256 KiB


@contextmanager
def little_memory(device: torch.device, mebibytes: int) -> Iterator[None]:
    """On a GPU torch may take only so much more than it holds."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + mebibytes * 2**20) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_where_memory_runs_out_the_same_examples_come_again_in_halves(device: torch.device) -> None:
    """A microbatch as large as the batch, then halves of it; the sum is that of small microbatches.

    The size is set above what fits, as where something else has taken the memory since it was measured.
    """
    torch.manual_seed(5)
    x, y = records(device)
    engine = Hungry(most=13) if device.type == "cpu" else BookKeeping()
    model = nn.Sequential(small(), nn.Identity() if device.type == "cpu" else Repeated()).to(device)
    seen: list[int] = []
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.autograd.grad(model(x[:1]).sum(), list(model.parameters()))  # products take memory of their own at first
    clip = PerExampleClip(model, 1.0, engine=engine, capture="eager")
    with run_of(clip, optimizer, (x, y), steps=1) as run:
        for batch in run.batches():
            batch.measured.now = RECORDS
            with little_memory(device, 96):
                for x_part, y_part in batch.microbatches("auto"):
                    seen.append(len(x_part))
                    run.accumulate(loss, x_part, y_part)
            optimizer.step()
    assert seen[0] == RECORDS
    assert seen[1] == RECORDS // 2
    assert sum(seen) > RECORDS, "some came again"
    by_device = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
    with torch.no_grad():
        for p, b in zip(model.parameters(), before, strict=True):
            p.copy_(b)
    clip = PerExampleClip(model, 1.0, capture="eager")
    for k in range(RECORDS):
        clip.accumulate(loss, x[k : k + 1], y[k : k + 1])
    [total] = clip.pop_sums()
    clip.close()
    for moved, g in zip(by_device, total.grads, strict=True):
        torch.testing.assert_close(moved, (-g / RECORDS).to(moved.dtype), rtol=1e-3, atol=1e-5)


class Repeated(nn.Module):
    """The same scores, by way of an activation of ``WIDE`` numbers for each example, and several of them."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.repeat_interleave(WIDE // 4, -1)
        for _ in range(8):
            wide = torch.sin(torch.asin(torch.clamp(wide * 0.05, -0.9, 0.9))) * 20  # each keeps what it was given
        return wide.unflatten(-1, (4, WIDE // 4)).mean(-1)


@contextmanager
def counted_waits(device: torch.device) -> Iterator[list[str]]:
    """What within it waits for the device; of a processor, nothing."""
    if device.type != "cuda":
        pretend_device.waits.clear()
        yield pretend_device.waits
        return
    found: list[str] = []
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield found
    finally:
        torch.cuda.set_sync_debug_mode("default")
    found += [f"{each.filename}:{each.lineno}" for each in caught if "synchroniz" in str(each.message)]


ALLOWED = 2  # for each microbatch: the clipping norms are copied to the device, and whether factors are finite is read


@pytest.mark.parametrize("way", ["eager", "graph"])
def test_a_warm_microbatch_hardly_waits_for_the_device(any_device: torch.device, way: Any) -> None:
    """Not in one of the calls in which a graph is compared with the step itself: the first two, the 4th, 8th, ..."""
    if way == "graph" and any_device.type == pretend_device.NAME:
        pytest.skip("a graph holds operations below those that the device sees")
    model = nn.Sequential(small(), nn.LayerNorm(4)).to(any_device)
    data = records(any_device)
    clip = PerExampleClip(model, 1.0, capture=way)
    parts = list(zip(*(column.split(6) for column in data), strict=True))
    for x, y in parts[:6]:
        clip.accumulate(loss, x, y)
    with counted_waits(any_device) as waits:
        for x, y in parts[6:]:
            clip.accumulate(loss, x, y)
    clip.close()
    assert len(waits) <= ALLOWED * len(parts[6:]), waits
