"""What a GPU would refuse is refused without one: the tests of this folder on a device that only pretends to be one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch takes no device that is written in Python",
)
HERE = Path(__file__).parent
MIXED = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import pretend_device as pretended
from pretend_device import pretend_device

with pretend_device() as device:
    weight = torch.randn(3, 4).to(device).requires_grad_()
    x = torch.randn(5, 4).to(device)
    [gradient] = torch.autograd.grad((x @ weight.t()).square().sum(), weight)
    assert gradient.device.type == "pretend"
    assert torch.allclose(gradient.cpu(), 2 * (x @ weight.t()).detach().cpu().t() @ x.cpu())
    pretended.waits.clear()
    float(gradient.sum())
    assert len(pretended.waits) == 1, pretended.waits
    try:
        x + torch.ones(5, 1)
    except RuntimeError as error:
        assert "same device" in str(error)
        print("refused")
"""


@pytest.mark.slow
def test_a_pretended_gpu_refuses_tensors_of_the_processor() -> None:
    command = [sys.executable, "-c", MIXED, str(HERE.parent / "support")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "refused\n", done.stderr


@pytest.mark.slow
@pytest.mark.skipif("PRETEND_DEVICE" in os.environ, reason="this is the process that the test starts")
def test_engines_layers_and_runs_on_a_pretended_gpu() -> None:
    chosen = ["-k", "pretend and not pretended", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"]
    command = [sys.executable, "-m", "pytest", str(HERE), *chosen, "--tb=short"]
    environment = {**os.environ, "PRETEND_DEVICE": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    for name in [name for name in environment if name.startswith("PYTEST_")]:
        del environment[name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=HERE.parents[1])
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout
    assert "failed" not in done.stdout
