"""The number of threads is chosen by time, without records, and only where the user chose none."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from noisette.training import loop
from noisette.training.loop import choose_threads, quickest


@pytest.mark.parametrize(("few", "many", "chosen"), [(0.1, 0.05, 8), (0.1, 0.095, 1), (0.1, 0.2, 1), (0.01, 40.0, 1)])
def test_all_threads_only_where_they_are_clearly_quicker(few, many, chosen):
    assert quickest(8, {1: few, 8: many}.__getitem__) == chosen


@pytest.fixture
def two_threads(monkeypatch):
    for name in loop._SET_BY:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(loop, "_AT_IMPORT", 2)
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


MODEL = nn.Sequential(nn.Dropout(), nn.Linear(4, 3), nn.BatchNorm1d(3))
X, Y = torch.full((5, 4), float("nan")), torch.zeros(5, dtype=torch.int64)


def loss(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    assert scores.isfinite().all(), "a record was used"
    return F.cross_entropy(scores, targets, reduction="none")


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("wanted", [1, 2])
def test_the_choice_is_set_and_nothing_else_changes(wanted, monkeypatch):
    def pretended(everything: int, seconds: Callable[[int], float]) -> int:
        assert all(seconds(threads) > 0 for threads in (1, everything)), "steps are taken"
        return wanted

    monkeypatch.setattr(loop, "quickest", pretended)
    MODEL.train()
    before = {name: value.clone() for name, value in MODEL.state_dict().items()}
    drawn = torch.get_rng_state()
    assert choose_threads(MODEL, loss, X, Y, 64) == torch.get_num_threads() == wanted
    assert all(torch.equal(value, before[name]) for name, value in MODEL.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert all(part.training for part in MODEL.modules())
    assert all(p.grad is None for p in MODEL.parameters())


@pytest.mark.usefixtures("two_threads")
def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.setattr(loop, "quickest", lambda everything, seconds: pytest.fail("was measured"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert choose_threads(MODEL, loss, X, Y, 64) == 2
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(loop, "_AT_IMPORT", 4)  # torch.set_num_threads(2) was called since
    assert choose_threads(MODEL, loss, X, Y, 64) == 2
