"""What every test has: one thread, a fixed seed, a marker by its folder, and privacy costs that are computed once."""

import random
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_limits

from noisette.accounting.pld import PldCurve
from noisette.core.noise import SecretKey
from noisette.core.steps import seed_torch

MARKERS = {
    "unit": (
        *("clipping", "accounting", "noise", "lipschitz", "nn", "data"),
        *("capture", "core", "rules", "test_architecture.py"),
    ),
    "run": (*("run", "ranks", "training", "audit", "assurance", "benchmarks", "integrations", "gpu", "redteam"),),
    "cli": ("cli", "papers", "docs", "zoo", "browser"),
}
MARKER = {folder: marker for marker, folders in MARKERS.items() for folder in folders}
# Tests of these folders train and do not examine the accountants.
TRAINING = {"training", "cli", "papers", "docs", "browser", "integrations", "benchmarks"}

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "src" / "noisette"


def folder_of(path: Path) -> str:
    """The folder of a test inside ``tests``, or that of a module with doctests inside the package."""
    return path.relative_to(TESTS if path.is_relative_to(TESTS) else PACKAGE).parts[0]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(TESTS):
            item.add_marker(MARKER[folder_of(item.path)])
        else:  # a doctest
            item.add_marker(MARKER.get(folder_of(item.path), "unit"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    """Times and roundings do not depend on the number of cores, and processes do not wait for each other."""
    torch.set_num_threads(1)
    threadpool_limits(1, user_api="blas")  # of NumPy and SciPy


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_interrupts():
    """A shell makes the programs that it starts in the background ignore Ctrl-C, and child processes inherit that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def known_key(monkeypatch):
    """The secret of all runs that begin within the test."""
    secret = bytes(range(32))
    monkeypatch.setattr("noisette.ranks.launch.SecretKey", partial(SecretKey, secret))
    return secret


@pytest.fixture(scope="session")
def _known_prices():
    return {}


@pytest.fixture(scope="module", autouse=True)
def _prices_are_computed_once(request, _known_prices):
    """Many runs of the tests have the same events; the distribution of their privacy loss takes much of their time.

    An answer is reused where the events and the question are the same. Tests of the accountants compute anew.
    """
    epsilon_of, delta_of = PldCurve.epsilon, PldCurve.delta

    def once(curve: PldCurve, asked: tuple[str, float], compute: Callable[[], float]) -> float:
        if curve.divergences is not None:
            return compute()
        key = (frozenset(curve.sampled.items()), curve.mu, *asked)
        if key not in _known_prices:
            _known_prices[key] = compute()
        return _known_prices[key]

    def epsilon(curve: PldCurve, *, delta: float) -> float:
        return once(curve, ("delta", delta), lambda: epsilon_of(curve, delta=delta))

    def delta(curve: PldCurve, *, epsilon: float) -> float:
        return once(curve, ("epsilon", epsilon), lambda: delta_of(curve, epsilon=epsilon))

    with pytest.MonkeyPatch.context() as patch:
        if folder_of(request.path) in TRAINING:
            patch.setattr(PldCurve, "epsilon", epsilon)
            patch.setattr(PldCurve, "delta", delta)
        yield


@pytest.fixture(autouse=True)
def _fixed_start(request):
    """Models, inputs and, by way of the keys, noise and batches repeat: a test fails always or never.

    No seed reaches the keys of noisette, so the operating system's random bytes are replaced by others that depend on
    the name of the test. Bytes of one test never repeat. Other processes are not affected.
    """
    seed_torch(20240229)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.urandom", random.Random(request.node.nodeid).randbytes)
        yield
    assert not torch.overrides._get_current_function_mode_stack(), "a recording was left open"
