"""The check of a finished run refuses a ledger that is not that of the run, also one whose digests follow."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from experiments.run_checks import RESULTS, epsilon_of_ledger
from finished_runs import redigested
from noisette.accounting import Ledger, PldAccountant, PoissonGaussian

STEP = PoissonGaussian(0.1, 2.0)
Lines = list[dict[str, Any]]


@pytest.fixture
def facts(tmp_path):
    """A run folder with a ledger of 40 steps; returns what its run.json says."""
    with Ledger(tmp_path / "ledger.jsonl", dataset="records") as ledger:
        for steps in (30, 10):
            ledger.reserve(STEP, steps)
            for _ in range(steps):
                ledger.commit()
    epsilon = PldAccountant().compose({STEP: 40}).epsilon(delta=1e-5)
    head = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[-1])["digest"]
    return {"recipe": {"privacy": {"delta": 1e-5}}, "epsilon": epsilon, "ledger_head": head}


def changed(name: str, value: object) -> Callable[[Lines], Lines]:
    return lambda lines: [{**line, name: value} if name in line else line for line in lines]


ALTERED: dict[str, Callable[[Lines], Lines]] = {
    "more noise": changed("noise_multiplier", 2.2),
    "a step less": lambda lines: [{**lines[0], "steps": 29}, *lines[1:]],
    "the end cut off": lambda lines: lines[:31],
}


def test_the_ledger_of_a_run_has_the_epsilon_of_its_facts(tmp_path, facts):
    assert epsilon_of_ledger(tmp_path, facts) == pytest.approx(facts["epsilon"], rel=1e-3)


@pytest.mark.parametrize("change", ALTERED.values(), ids=ALTERED)
def test_another_ledger_is_refused_though_its_digests_follow(tmp_path, facts, change):
    redigested(tmp_path / "ledger.jsonl", change)
    with pytest.raises(SystemExit, match="does not end with the digest"):
        epsilon_of_ledger(tmp_path, facts)


@pytest.mark.parametrize("noise", [1.9, 2.1])
def test_another_epsilon_is_refused(tmp_path, facts, noise):
    facts["ledger_head"] = redigested(tmp_path / "ledger.jsonl", changed("noise_multiplier", noise))
    with pytest.raises(SystemExit, match=r"has epsilon .* and run\.json states"):
        epsilon_of_ledger(tmp_path, facts)


def test_committed_lines_agree():
    for line in map(json.loads, RESULTS.read_text().splitlines()):
        assert line["repriced"] == pytest.approx(line["epsilon"], rel=1e-3), line["run"]
