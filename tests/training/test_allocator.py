"""Freed memory is kept where the C library can."""

import platform
import subprocess
import sys

import pytest

MEASURED = """
import torch
from pathlib import Path
from noisette.training import keep_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
def given_back():
    large = [torch.ones(2**24) for _ in range(4)]
    full = resident()
    del large
    return full - resident()
print(given_back(), keep_freed_memory(), given_back())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs Linux with glibc")
def test_freed_memory_stays_with_the_process_once_a_command_asks_for_it():
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True)
    before, kept, after = done.stdout.split()
    assert kept == "True"
    assert abs(int(before) - 2**28) < 2**25
    assert abs(int(after)) < 2**25
