"""``torchrun -m noisette train``: one run, written and reported by rank 0 alone."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from noisette import Ledger

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "noisette"]
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "NOISETTE_COMPILE": "0"}


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    pipes = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*TORCHRUN, "train", *arguments], cwd=folder, env=ENVIRONMENT, **pipes)


@pytest.mark.slow
def test_two_ranks_make_one_run(tmp_path):
    process = start(tmp_path, "--epochs", "2", "--out", "run")
    printed, problems = process.communicate(timeout=120)
    assert process.returncode == 0, problems
    assert printed.count("test accuracy") == 1
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    [(_, steps)] = Ledger.read(tmp_path / "run" / "ledger.jsonl").events.items()
    assert steps == 8
    assert facts["test_accuracy"] > 0.5
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


@pytest.mark.slow
def test_wrong_input_is_reported_once(tmp_path):
    process = start(tmp_path, "--data", "nothing-there", "--out", "run")
    _, problems = process.communicate(timeout=120)
    assert process.returncode != 0
    assert problems.count("there is no data set and no file") == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_run_that_was_ended_goes_on_with_other_ranks(tmp_path):
    process = start(tmp_path, "--epochs", "25", "--out", "run")
    ledger = tmp_path / "run.unfinished-1" / "ledger.jsonl"
    until = time.monotonic() + 60
    while not (ledger.exists() and b"commit" in ledger.read_bytes()) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)  # torchrun passes it on to both ranks
    process.communicate(timeout=60)
    command = [sys.executable, "-m", "noisette", "train", "--resume", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    [(_, steps)] = Ledger.read(tmp_path / "run" / "ledger.jsonl").events.items()
    assert steps == json.loads((tmp_path / "run" / "run.json").read_text())["steps"] == 100
