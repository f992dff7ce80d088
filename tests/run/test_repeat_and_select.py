"""The driver of a search: what it charges, what it draws, and what leaves it."""

import math

import pytest

from noisette.accounting import Gaussian, Ledger, RepeatAndSelect
from noisette.accounting.repeated_runs import NumberOfRuns
from noisette.errors import PrivacyError
from noisette.run.repeat_and_select import repeat_and_select

RELEASE = Gaussian(4.0)
SEARCH = RepeatAndSelect(((RELEASE, 2),), mean=6.0, shape=1.0)


def drawn(monkeypatch, number):
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: number)


def results_of(values):
    left = iter(values)

    def train_once(ledger):
        ledger.charge(RELEASE, times=2)
        value = next(left)
        if isinstance(value, BaseException):
            raise value
        return value

    return train_once


def identity(value):
    return value


def test_the_best_is_returned_and_the_first_of_equals(monkeypatch):
    drawn(monkeypatch, 4)
    results = [("a", 1.0), ("b", 3.0), ("c", 3.0), ("d", 2.0)]
    assert repeat_and_select(Ledger(), SEARCH, results_of(results), lambda r: r[1], fallback=("", 0.0)) == ("b", 3.0)


def length_of_a_search():
    runs = []
    repeat_and_select(Ledger(), SEARCH, lambda ledger: runs.append(1) or 0.0, identity, fallback=0.0)
    return len(runs)


def test_numbers_of_runs_differ_between_searches():
    lengths = [length_of_a_search() for _ in range(40)]
    assert len(set(lengths)) > 3
    assert min(lengths) >= 1


def test_scores_that_are_no_numbers_or_fail_are_the_lowest(monkeypatch):
    drawn(monkeypatch, 2)
    assert repeat_and_select(Ledger(), SEARCH, results_of([math.nan, 0.5]), identity, fallback=-1.0) == 0.5
    assert repeat_and_select(Ledger(), SEARCH, results_of(["one", 0.5]), float, fallback=-1.0) == 0.5
    assert repeat_and_select(Ledger(), SEARCH, results_of([math.nan, -math.inf]), identity, fallback=-1.0) == -1.0


def test_the_search_is_on_disk_before_the_number_is_drawn(tmp_path, monkeypatch):
    path, seen = tmp_path / "ledger.jsonl", []

    def draw(self, key):
        seen.append(Ledger.read(path).events)
        return 2

    monkeypatch.setattr(NumberOfRuns, "draw", draw)
    with Ledger(path, dataset="d") as ledger:
        repeat_and_select(ledger, SEARCH, results_of([1.0, 2.0]), identity, fallback=0.0)
    assert seen == [{SEARCH: 1}]
    assert Ledger.read(path).events == {SEARCH: 1}  # the runs themselves are paid by the search


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(1)])
def test_an_interrupted_search_is_spent_and_another_is_charged_anew(tmp_path, monkeypatch, interrupt):
    drawn(monkeypatch, 3)
    with Ledger(tmp_path / "ledger.jsonl") as ledger, pytest.raises(type(interrupt)):
        repeat_and_select(ledger, SEARCH, results_of([1.0, interrupt]), identity, fallback=0.0)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        assert ledger.events == {SEARCH: 1}
        repeat_and_select(ledger, SEARCH, results_of([1.0, 2.0, 3.0]), identity, fallback=0.0)
        assert ledger.events == {SEARCH: 2}


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_run_that_released_more_than_is_paid_is_refused(monkeypatch, swallowed):
    drawn(monkeypatch, 2)

    def train_once(ledger):
        ledger.charge(RELEASE, times=3)
        if swallowed:
            raise ValueError("a failure hides nothing of this")
        return 1.0

    ledger = Ledger()
    with pytest.raises(PrivacyError, match=r"released 3 × Gaussian.*paid for 2 × .*the search is spent"):
        repeat_and_select(ledger, SEARCH, train_once, identity, fallback=0.0)
    assert ledger.events == {SEARCH: 1}


def test_each_run_has_a_ledger_of_its_own_for_the_same_data(monkeypatch):
    drawn(monkeypatch, 3)
    seen = []

    def train_once(ledger):
        seen.append((ledger.dataset, ledger.path, dict(ledger.events)))
        ledger.charge(RELEASE, times=2)
        return 0.0

    repeat_and_select(Ledger(dataset="patients"), SEARCH, train_once, identity, fallback=0.0)
    assert seen == [("patients", None, {})] * 3
