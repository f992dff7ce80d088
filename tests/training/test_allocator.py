"""Freed memory is kept where the C library can, and the choice is made by commands alone."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

import noisette
from noisette import training as allocator

MEASURED = """
import torch
from pathlib import Path
from noisette.training import keep_freed_memory
assert not {kept} or keep_freed_memory()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
large = [torch.ones(2**24) for _ in range(4)]
full = resident()
del large
print(full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs Linux with glibc")
@pytest.mark.parametrize(("kept", "given_back"), [(True, 0), (False, 2**28)])
def test_freed_memory_stays_with_the_process(kept: bool, given_back: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED.format(kept=kept)], capture_output=True, text=True, check=True
    )
    assert abs(int(done.stdout) - given_back) < 2**25


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(allocator.sys, "platform", system)
    assert not allocator.keep_freed_memory()


def test_only_commands_choose_for_the_process() -> None:
    source = Path(noisette.__file__).parent
    users = {path.parent.name for path in source.rglob("*.py") if "keep_freed_memory" in path.read_text()}
    assert users == {"training", "cli"}
