"""Whole runs: memory that runs out, checkpoints that move to the processor, and nothing that waits for the device."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pretend_device
from noisette import Ledger, PerExampleClip, PrivateRun, privatize
from small_loop import loss

F = nn.functional
RECORDS = 48


def small(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 4))


def records(device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.randn(RECORDS, 6).to(device), (torch.arange(RECORDS) % 4).to(device)


def run_of(clip: PerExampleClip, optimizer: torch.optim.Optimizer, data: Any, **more: Any) -> PrivateRun:
    settings = {"expected_batch_size": RECORDS, "sampling_rate": 1.0, "steps": 6, "noise_multiplier": 1e-9}
    return privatize(clip, optimizer, data, **{**settings, **more})


def take_steps(run: PrivateRun, place: torch.device, most: int = 6) -> None:
    for _, batch in zip(range(most), run.batches(), strict=False):
        for x, y in batch.microbatches(16):
            run.accumulate(loss, x.to(place), y.to(place))
        run.optimizer.step()


@pytest.mark.parametrize("held", ["on the device", "on the processor"])
def test_a_run_trains_as_on_the_processor(any_device: torch.device, held: str) -> None:
    """With hardly any noise, all records in each batch, and records on either side."""
    torch.manual_seed(5)
    data, trained = records(torch.device("cpu")), []
    for place in (torch.device("cpu"), any_device):
        torch.manual_seed(6)
        model = small().to(place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        given = tuple(x.to(place) for x in data) if held == "on the device" else data
        with run_of(PerExampleClip(model, 1.0), optimizer, given) as run:
            take_steps(run, place)
        assert all(p.device.type == place.type for p in model.parameters())
        trained.append(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]))
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-3, atol=1e-4)


def test_a_checkpoint_of_the_device_is_resumed_on_the_processor(any_device: torch.device, tmp_path: Path) -> None:
    torch.manual_seed(5)
    data, model = records(torch.device("cpu")), small().to(any_device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with run_of(PerExampleClip(model, 1.0), optimizer, data, ledger=ledger) as run:
        take_steps(run, any_device, most=3)
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
        take_steps(resumed, torch.device("cpu"))
        assert resumed.steps_taken == 6


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
    data, clip = records(any_device), PerExampleClip(model, 1.0, capture=way)
    parts = list(zip(*(column.split(6) for column in data), strict=True))
    for x, y in parts[:6]:
        clip.accumulate(loss, x, y)
    with counted_waits(any_device) as waits:
        for x, y in parts[6:]:
            clip.accumulate(loss, x, y)
    assert len(waits) <= ALLOWED * len(parts[6:]), waits
