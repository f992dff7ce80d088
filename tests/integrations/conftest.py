"""What the tests of other libraries leave behind in their global state."""

import signal
import sys
from collections.abc import Iterator

import pytest

from small_loop import scale_noise


@pytest.fixture(autouse=True)
def accelerate_begins_anew() -> Iterator[None]:
    """Whether gradients are synchronised is one state for all accelerators of a process."""
    yield
    if (state := sys.modules.get("accelerate.state")) is not None:
        state.GradientState._reset_state()
        state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def signals_are_handled_as_before() -> Iterator[None]:
    """A trainer of Lightning that fails may leave its handlers."""
    signals = (signal.SIGTERM, signal.SIGUSR1, signal.SIGCONT)
    before = {number: signal.getsignal(number) for number in signals}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def little_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise that is too small to matter."""
    scale_noise(monkeypatch, 1e-9)


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
