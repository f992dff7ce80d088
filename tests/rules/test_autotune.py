"""Candidates are measured once for each key and context, and not at all under deterministic algorithms."""

from __future__ import annotations

import time

import pytest
import torch

import noisette.rules.conv as autotune
from noisette.rules.conv import fastest

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


def test_nothing_is_measured_under_deterministic_algorithms() -> None:
    def refuse() -> None:
        raise AssertionError("measured")

    assert fastest("key", {"only": refuse}, CPU) == "only"
    torch.use_deterministic_algorithms(True)
    try:
        assert fastest("key", {"first": refuse, "second": refuse}, CPU) == "first"
    finally:
        torch.use_deterministic_algorithms(False)
