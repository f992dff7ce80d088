"""Long and large runs take no more memory, time and room than they should. Each figure is kept with the result."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from noisette import Ledger, privatize
from small_run import parts, take_steps

Keep = Callable[[str, object], None]
linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")


def own_memory() -> float:
    """What the process holds in memory of its own, in MiB: pages of mapped files can be let go and do not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no such line")


@linux
@pytest.mark.slow
def test_fifty_thousand_steps_leave_memory_as_it_was(tmp_path: Path, record_property: Keep) -> None:
    held: list[float] = []
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        declared = {"sampling_rate": 0.1, "expected_batch_size": 5, "steps": 50_000, "noise_multiplier": 4.0}
        with privatize(*parts(), torch.randn(50, 4), ledger=ledger, **declared) as run:
            for _ in range(10):
                take_steps(run, 5_000, save_to=tmp_path / "saved", every=1_000)
                held.append(own_memory())
        assert ledger.committed == 50_000
    record_property("MiB that memory grew by in the last 45,000 of 50,000 steps", round(held[-1] - held[0], 1))
    record_property("KiB of the ledger after 50,000 steps", (tmp_path / "ledger.jsonl").stat().st_size // 1024)
    assert held[-1] - held[0] < 4
    assert (tmp_path / "ledger.jsonl").stat().st_size < (2**20)


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
