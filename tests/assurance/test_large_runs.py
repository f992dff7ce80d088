"""Long and large runs take no more memory, time and room than they should. Each figure is kept with the result."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from noisette import Ledger, PerExampleClip, PldAccountant, PoissonGaussian, RdpAccountant, privatize
from small_run import parts, squares, take_steps

MIB = 2**20
Keep = Callable[[str, object], None]
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def own_memory() -> float:
    """What the process holds in memory of its own, in MiB: pages of mapped files can be let go and do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no such line")


@pytest.mark.slow
def test_a_million_steps_have_a_price(record_property: Keep) -> None:
    run = {PoissonGaussian(sampling_rate=1e-4, noise_multiplier=1.0): 1_000_000}
    start = time.perf_counter()
    tight = PldAccountant().compose(run).epsilon(delta=1e-6)
    record_property("seconds to price a million steps", round(time.perf_counter() - start, 1))
    assert 0.5 < tight <= RdpAccountant().compose(run).epsilon(delta=1e-6) < 2


@linux
@pytest.mark.slow
def test_fifty_thousand_steps_leave_memory_as_it_was(tmp_path: Path, record_property: Keep) -> None:
    held: list[float] = []
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        run = privatize(
            *parts(),
            torch.randn(50, 4),
            sampling_rate=0.1,
            expected_batch_size=5,
            steps=50_000,
            noise_multiplier=4.0,
            ledger=ledger,
        )
        with run:
            for _ in range(10):
                take_steps(run, 5_000, save_to=tmp_path / "saved", every=1_000)
                held.append(own_memory())
        assert ledger.committed == 50_000
    record_property("MiB that memory grew by in the last 45,000 of 50,000 steps", round(held[-1] - held[0], 1))
    record_property("KiB of the ledger after 50,000 steps", (tmp_path / "ledger.jsonl").stat().st_size // 1024)
    assert held[-1] - held[0] < 4
    assert (tmp_path / "ledger.jsonl").stat().st_size < MIB


@linux
@pytest.mark.slow
def test_ten_gigabytes_on_the_disk_are_never_in_memory(tmp_path: Path, record_property: Keep) -> None:
    """A sparse file, whose holes are zeros, is mapped and drawn from."""
    width, records = 1024, 2_500_000
    with (tmp_path / "records").open("wb") as file:
        file.truncate(4 * width * records)
    mapped = np.memmap(tmp_path / "records", dtype=np.float32, mode="r+", shape=(records, width))
    mapped[:: records // 100] = 1.0
    model = nn.Linear(width, 1)
    run = privatize(
        PerExampleClip(model, 1.0),
        torch.optim.SGD(model.parameters(), lr=0.1),
        mapped,
        sampling_rate=1e-4,
        expected_batch_size=250,
        steps=12,
        noise_multiplier=1.0,
    )
    held: list[float] = []
    with run:
        for batch in run.batches():
            for x in batch.microbatches(128):
                run.accumulate(squares, x)
            run.optimizer.step()
            run.optimizer.zero_grad()
            held.append(own_memory())
    record_property("GB of records on the disk", round(mapped.nbytes / 1e9, 1))
    record_property("MiB that memory grew by after the second step on them", round(max(held) - held[1], 1))
    assert max(held) - held[1] < 64


NOISE = """
import resource, sys, time
import torch
from noisette.core.release import BoundedSum
from noisette.core.noise import SecretKey
from noisette.core.release import GaussianRelease

torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
release = GaussianRelease(SecretKey(), 1.0, 100)
def released(numbers):
    p = torch.zeros(numbers)
    release([BoundedSum((p,), (torch.zeros(numbers),), 1.0)], {id(p): str(numbers)}, step=0)
    return p
released(10**6)
numbers = 10**8
p, total = torch.zeros(numbers), torch.ones(numbers)
before = peak()
start = time.perf_counter()
release([BoundedSum((p,), (total,), 1.0)], {id(p): "all"}, step=0)
seconds = time.perf_counter() - start
print(peak() - before, seconds, float(p.grad[::1000].std()))
"""


@pytest.mark.slow
def test_noise_of_a_hundred_million_numbers_takes_no_memory_beside_them(record_property: Keep) -> None:
    done = subprocess.run([sys.executable, "-c", NOISE], capture_output=True, text=True, check=True)
    more, seconds, std = map(float, done.stdout.split())
    record_property("MiB beside them for the noise of 100,000,000 numbers", round(more, 1))
    record_property("seconds for the noise of 100,000,000 numbers", round(seconds, 1))
    assert more < 32
    assert std == pytest.approx(0.01, rel=0.02)
