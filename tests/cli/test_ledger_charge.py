"""``noisette ledger charge``, and the words for every kind of event."""

import json
import math

import pytest

from command_line import noisette, refusal, succeeded
from noisette import GdpAccountant, Ledger, PldAccountant, TruncatedPoissonGaussian, ZcdpAmount
from noisette.accounting import FixedSizeGaussian, GroupPrivacy, Laplace, PoissonGaussian, RepeatAndSelect, UserLevel
from noisette.accounting.events import BallsInBinsGaussian, BandedGaussian, DiscreteGaussian, DpAmount, Gaussian


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


def run(*words):
    return noisette("ledger", *words)


@pytest.fixture
def path(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl", dataset="census") as ledger:
        ledger.charge(PoissonGaussian(0.01, 2.0), 100)
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize(
    ("words", "event", "times"),
    [
        (["--zcdp", "0.1", "--tool", "census tables"], ZcdpAmount(0.1, "census tables"), 1),
        (["--epsilon", "0.5", "--delta", "1e-9", "--tool", "x"], DpAmount(0.5, 1e-9, "x"), 1),
        (["--laplace", "2", "--times", "7"], Laplace(2.0), 7),
        (["--discrete-gaussian", "5"], DiscreteGaussian(5.0), 1),
        (["--gaussian", "8", "--per", "record"], Gaussian(8.0), 1),
    ],
)
def test_a_release_of_another_tool_is_recorded_and_priced_with_the_rest(path, words, event, times):
    assert f"recorded {times} × " in succeeded(run("charge", path.parent, *words)).stdout
    assert Ledger.read(path).events == {PoissonGaussian(0.01, 2.0): 100, event: times}
    priced = json.loads(run("price", path, "--delta", "1e-5", "--accountant", "pld", "--json").stdout)
    alone = PldAccountant().compose({PoissonGaussian(0.01, 2.0): 100}).epsilon(delta=1e-5)
    assert alone < float(priced["prices"][0]["epsilon"])


def test_a_new_ledger_needs_the_name_of_its_data_set(tmp_path):
    path = tmp_path / "new.jsonl"
    refusal(run("charge", path, "--zcdp", "0.1"), "--dataset")
    assert not path.exists()
    succeeded(run("charge", path, "--zcdp", "0.1", "--dataset", "census"))
    succeeded(run("charge", path, "--zcdp", "0.1", "--dataset", "census"))
    assert (Ledger.read(path).dataset, Ledger.read(path).events) == ("census", {ZcdpAmount(0.1): 2})


@pytest.mark.parametrize(
    ("per", "relation"),
    [
        ("user", "add or remove all records of one user"),
        ("replaced-record", "replace one record"),
        ("3-records", "add or remove a group of 3 records"),
        ("2-users", "add or remove all records of a group of 2 users"),
    ],
)
def test_a_charge_says_for_whom_it_is_stated(tmp_path, per, relation):
    """Noise in units of the sensitivity to whom it protects costs the same for all of them, at every delta."""
    path = tmp_path / "new.jsonl"
    recorded = run("charge", path, "--gaussian", "5", "--per", per, "--dataset", "census")
    assert f"Gaussian, noise 5, {relation} on" in recorded.stdout
    priced = json.loads(run("price", path, "--delta", "1e-10", "--json").stdout)
    assert priced["neighbouring"] == relation
    exact = GdpAccountant().compose({Gaussian(5.0): 1}).epsilon(delta=1e-10)
    found = {row["accountant"]: row["epsilon"] for row in priced["prices"]}
    assert found["pld"] == exact == pytest.approx(1.18, abs=0.01)


@pytest.mark.parametrize("amount", [["--epsilon", "1e10"], ["--laplace", "1e-6"], ["--discrete-gaussian", "1e-200"]])
def test_an_amount_that_is_no_guarantee_is_priced_and_said_in_words(path, amount):
    succeeded(run("charge", path, *amount))
    shown = run("price", path, "--delta", "1e-5")
    assert (shown.exit_code, shown.stdout.split()[3]) == (0, "inf")
    assert "inf: there is no guarantee at this delta" in shown.stdout


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ([], ["exactly one", "none"]),
        (["--zcdp", "1", "--per", "1-records"], ["'1-records' is not one of record, user"]),
        (["--zcdp", "1", "--laplace", "1", "--times", "0"], ["zcdp and laplace", "times=0"]),
        (["--zcdp", "1", "--delta", "1e-5"], ["delta=1e-05 belongs to an epsilon"]),
        (["--epsilon", "-1", "--delta", "1"], ["epsilon=-1"]),
        (["--zcdp", "1", "--dataset", "other"], ["'census', not of 'other'"]),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(path, words, problems):
    before = path.read_bytes()
    refusal(run("charge", path, *words), *problems)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (ZcdpAmount(0.1, "census tables"), "declared zCDP, rho 0.1 (census tables)"),
        (DpAmount(0.1234567, 1e-9), "declared epsilon and delta, epsilon 0.12346, delta 1e-09"),
        (DiscreteGaussian(2.9999999), "discrete Gaussian, noise 2.9999"),
        (TruncatedPoissonGaussian(0.01, 2.0, 15, 99), "rate 0.01, batches of at most 15, at most 99 records, noise 2"),
        (BallsInBinsGaussian(100, 2.0), "balls-in-bins Gaussian, one of 100 batches, noise 2"),
        (UserLevel(PoissonGaussian(0.01, 4.0), 3), "Poisson Gaussian, rate 0.01, noise 4, for a user of up to 3"),
        (FixedSizeGaussian(100, 10_000, 2.0), "fixed-size Gaussian, batches of 100, 10,000 records, noise 2"),
        (GroupPrivacy(PoissonGaussian(0.01, 4.0), 3), "Poisson Gaussian, rate 0.01, noise 4, for a group of 3"),
        (RepeatAndSelect(((PoissonGaussian(0.01, 4.0), 9),), 10.0, math.inf), "10 runs (shape inf) of 9 × Poisson"),
        (BandedGaussian(0.01, 2.0, 8), "banded Gaussian, rate 0.01, rounds of 8 steps, noise 2"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_event_has_words_and_a_price(tmp_path, event, words):
    with Ledger(tmp_path / "any.jsonl") as ledger:
        ledger.charge(event, event.round_length)
    assert words in run("show", tmp_path / "any.jsonl").stdout
    priced = json.loads(run("price", tmp_path / "any.jsonl", "--delta", "1e-5", "--json").stdout)
    assert min(float(row["epsilon"]) for row in priced["prices"]) > 0


def test_a_release_is_recorded_in_the_ledger_of_a_run_that_was_cut_off(tmp_path):
    ledger = tmp_path / "run.unfinished-1" / "ledger.jsonl"
    ledger.parent.mkdir()
    with Ledger(ledger, dataset="census") as own:
        own.charge(Gaussian(3.0))
    for options in ([], ["--dataset", "census"]):
        succeeded(run("charge", tmp_path / "run", "--gaussian", "2", *options))
    assert Ledger.read(ledger).events == {Gaussian(3.0): 1, Gaussian(2.0): 2}
    assert not (tmp_path / "run").exists(), "a file of this name would keep the run from its folder"
