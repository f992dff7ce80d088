"""The process group of a command that ``torchrun`` has started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import os, sys
from noisette.ranks import launched

with launched() as ranks:
    import torch.distributed.nn.functional

    assert ranks.size == 2
    ranks.of_all("a test", {})
for thread in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{thread}/comm") as name:
        sys.stdout.write(name.read())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads of C++ are listed on Linux alone")
def test_no_thread_of_the_process_group_outlives_it(tmp_path: Path) -> None:
    """While the interpreter ends, such a thread may free a tensor, and aborts the process: rarely, after a good run."""
    (tmp_path / "command.py").write_text(COMMAND)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "command.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "gloo" not in done.stdout
