"""Every test here runs on the processor, and with the mark ``gpu`` the same code runs on a CUDA device.

In a process with ``PRETEND_DEVICE`` in its environment many of them also run on a device that shows what a GPU would
refuse. It needs a process of its own, since torch counts devices in the first backward pass.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pretend_device import pretend_device

HERE = Path(__file__).parent
# torch says on a GPU what needs no answer: that a thread had no context yet, that TF32 would be quicker.
SAID_ON_A_GPU = ("default", "error::noisette.capture.captured.CaptureWarning")
PRETENDS = "PRETEND_DEVICE" in os.environ
ON_A_GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings(*SAID_ON_A_GPU))


@pytest.fixture(params=["cpu", ON_A_GPU])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with _device(request.param) as device:
        yield device


@pytest.fixture(params=["cpu", ON_A_GPU, *(["pretend"] if PRETENDS else [])])
def any_device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A processor, a device that shows what a GPU would refuse, or a GPU."""
    with pretend_device() if request.param == "pretend" else _device(request.param) as device:
        yield device


@pytest.fixture(params=[ON_A_GPU])
def gpu(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    with _device(request.param) as device:
        yield device


@contextmanager
def _device(name: str) -> Iterator[torch.device]:
    """A device with exact single precision: no TF32 in products and convolutions."""
    if name == "cuda" and not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device on this machine")
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield torch.device(name)
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    if name == "cuda":
        torch.cuda.empty_cache()
