"""What every test has: one thread, so that times and roundings do not depend on the machine, and a fixed start."""

import signal
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell has programs that it starts in the background ignore it, and that is inherited."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _fixed_start() -> Iterator[None]:
    """Models and inputs repeat; the secret noise and the batches of noisette do not, since no seed reaches them."""
    torch.manual_seed(20240229)
    yield
    assert not torch.overrides._get_current_function_mode_stack(), "a recording was left open"
