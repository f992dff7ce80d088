"""The job files parse and agree with each other, and the job for SLURM runs, also where a rank is killed."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from noisette import Ledger, __version__

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "examples" / "jobs"
PAGE = (ROOT / "docs" / "how-to" / "clusters-and-containers.md").read_text(encoding="utf-8")
SBATCH = JOBS / "slurm.sbatch"
# A rank that is killed at its twelfth step, in the first attempt.
KILLED = """
import os, runpy, signal, sys, noisette
accumulate = noisette.PrivateRun.accumulate
def struck(run, *arguments, **options):
    if os.environ["TORCHELASTIC_RESTART_COUNT"] + os.environ["RANK"] == "01" and run.steps_taken == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    return accumulate(run, *arguments, **options)
noisette.PrivateRun.accumulate = struck
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_job_for_slurm_parses_and_starts_torchrun_once_on_each_machine():
    subprocess.run(["bash", "-n", str(SBATCH)], check=True)
    text = SBATCH.read_text(encoding="utf-8")
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?$", text, re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    assert len(re.findall(r"^#SBATCH", text, re.MULTILINE)) == len(options)
    assert f"sbatch {SBATCH.relative_to(ROOT)} examples/train_on_ranks.py" in PAGE
    assert f"sbatch {SBATCH.relative_to(ROOT)} examples/train_on_ranks.py" in text


@pytest.mark.slow
def test_the_job_for_slurm_goes_on_after_the_death_of_a_rank(tmp_path):
    """With stand-ins for the programs of SLURM, on one machine with two ranks."""
    commands = {
        "scontrol": "echo localhost",
        "srun": 'exec "$@"',
        "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
    }
    for name, line in commands.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "killed.py").write_text(KILLED)
    slurm = {"SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_ID": "7"}
    paths = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment = os.environ | paths | slurm | {"OMP_NUM_THREADS": "1", "NOISETTE_COMPILE": "0"}
    script = [str(ROOT / "examples" / "train_on_ranks.py"), "--out", "run", "--steps", "24"]
    settings = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run(["bash", str(SBATCH), "killed.py", *script], **settings)
    assert done.returncode == 0, done.stderr[-3000:]
    steps = re.match(r"steps (\d+), epsilon (\S+),", done.stdout)
    assert steps, done.stdout
    assert 20 <= int(steps[1]) <= 22, "steps after the checkpoint at 10 were spent twice"
    assert float(steps[2]) <= 3
    assert sum(Ledger.read(tmp_path / "run" / "ledger.jsonl").events.values()) == 24


@pytest.fixture
def kubernetes():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    objects = list(yaml.safe_load_all((JOBS / "kubernetes.yaml").read_text(encoding="utf-8")))
    assert [one["kind"] for one in objects] == ["Service", "NetworkPolicy", "Job"]
    return {one["kind"]: one for one in objects}


def test_the_job_for_kubernetes_starts_as_many_ranks_as_there_are_machines_and_gpus(kubernetes):
    job, pod = kubernetes["Job"], kubernetes["Job"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    command = dict(part.lstrip("-").split("=", 1) for part in container["command"] if "=" in part)
    assert job["spec"]["completionMode"] == "Indexed"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(command["nnodes"])
    assert container["resources"]["limits"]["nvidia.com/gpu"] == int(command["nproc-per-node"])
    service = kubernetes["Service"]
    assert (service["spec"]["clusterIP"], pod["subdomain"]) == ("None", service["metadata"]["name"])
    host = command["rdzv-endpoint"].partition(":")[0]
    assert host == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}
    assert container["image"] == f"noisette:{__version__}"
    assert {"name": "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "value": "1"} in container["env"]


def test_nobody_else_connects_to_the_ranks_of_kubernetes(kubernetes):
    labels = kubernetes["Job"]["spec"]["template"]["metadata"]["labels"]
    policy = kubernetes["NetworkPolicy"]["spec"]
    assert kubernetes["Service"]["spec"]["selector"] == policy["podSelector"]["matchLabels"] == labels
    assert policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]


def test_the_loop_for_ray_trains_in_the_process_group_that_is_there(tmp_path, monkeypatch):
    """With a stand-in for Ray, which makes a group of one and calls the function; again, it finds its checkpoint."""
    calls = []

    class Trainer:
        def __init__(self, train: Any, *, train_loop_config: Any, scaling_config: Any, run_config: Any) -> None:
            self.train, self.config = train, train_loop_config
            assert (scaling_config["num_workers"], run_config["failure_config"]) == (2, {"max_failures": 3})

        def fit(self) -> None:
            calls.append(self.config)
            self.train(self.config)

    ray, train, of_torch = ModuleType("ray"), ModuleType("ray.train"), ModuleType("ray.train.torch")
    vars(train).update(FailureConfig=dict, RunConfig=dict, ScalingConfig=dict)
    vars(of_torch).update(TorchTrainer=Trainer, get_device=lambda: torch.device("cpu"))
    for module in (ray, train, of_torch):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for _ in range(2):
            runpy.run_path(str(JOBS / "ray_train.py"), run_name="__main__")
    finally:
        dist.destroy_process_group()
    assert calls == [{"folder": str(tmp_path / "runs" / "ray")}] * 2
    assert sum(Ledger.read(tmp_path / "runs" / "ray" / "ledger.jsonl").events.values()) == 20
