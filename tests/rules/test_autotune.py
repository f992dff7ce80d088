"""Candidates are measured once for each key and context, and not at all under deterministic algorithms."""

from __future__ import annotations

import time
from functools import partial

import pytest
import torch

import noisette.rules.conv as autotune
from noisette.rules.conv import fastest, few_operations

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _no_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_WINNERS", {})


def test_the_fastest_is_chosen_and_cached() -> None:
    calls = []
    candidates = {"slow": lambda: (calls.append("slow"), time.sleep(0.02)), "quick": lambda: calls.append("quick")}
    assert fastest("key", candidates, CPU) == "quick"
    assert calls.count("slow") == 2
    measured = len(calls)
    assert fastest("key", candidates, CPU) == "quick"
    assert len(calls) == measured
    fastest("another key", candidates, CPU)
    assert len(calls) > measured


def test_a_slow_first_call_does_not_count() -> None:
    calls = []

    def slow_at_first() -> None:
        calls.append(None)
        time.sleep(0.02 if len(calls) == 1 else 0)

    assert fastest("key", {"steady": lambda: time.sleep(0.005), "warmed up": slow_at_first}, CPU) == "warmed up"


def test_nothing_is_measured_under_deterministic_algorithms() -> None:
    def refuse() -> None:
        raise AssertionError("measured")

    assert fastest("key", {"only": refuse}, CPU) == "only"
    torch.use_deterministic_algorithms(True)
    try:
        assert fastest("key", {"first": refuse, "second": refuse}, CPU) == "first"
    finally:
        torch.use_deterministic_algorithms(False)


def test_where_operations_are_few_the_choice_is_another_one() -> None:
    assert fastest("key", {"slow": lambda: time.sleep(0.02), "quick": lambda: None}, CPU) == "quick"
    with few_operations():
        assert fastest("key", {"slow": lambda: None, "quick": lambda: time.sleep(0.02)}, CPU) == "slow"
    assert fastest("key", {"slow": lambda: None, "quick": lambda: time.sleep(0.02)}, CPU) == "quick"


def test_a_gpu_is_timed_by_its_own_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of a GPU, simulated: each candidate takes its time there, and first some more."""
    now, started = [0.0], {"slow": 0, "quick": 0}

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at: float | None = None

        def record(self, stream: object) -> None:
            assert stream == "the stream"
            self.at = now[0]

        def synchronize(self) -> None:
            assert self.at is not None

        def elapsed_time(self, end: Event) -> float:
            assert self.at is not None
            assert end.at is not None
            return end.at - self.at

    def candidate(name: str, milliseconds: float) -> None:
        started[name] += 1
        now[0] += milliseconds + (100 if name == "quick" and started[name] == 1 else 0)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "the stream")
    plans = {name: partial(candidate, name, milliseconds) for name, milliseconds in [("slow", 9), ("quick", 3)]}
    assert fastest("of a gpu", plans, torch.device("cuda")) == "quick"
    assert started == {"slow": 2, "quick": 5}
