"""``noisette train`` with a guarantee for users, and with truncated and cyclic batches."""

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import facts, noisette, refusal, succeeded, train, words
from noisette.accounting import BandedGaussian, Event, Ledger, PldAccountant, TradeOff, UserLevel
from noisette.accounting import TruncatedPoissonGaussian as Truncated
from noisette.training.report.facts import upward_percent

BASE = ("--model", "mlp", "--classes", "2", "--size", "400", "--batch-size", "40", "--epochs", "2", "--delta", "1e-4")
USERS = ("--users", "name", "--records-per-user", "3")


def table(path: Path, *, users: int = 40) -> Path:
    random = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},person-{k % users},{int(a > b)}" for k, (a, b) in enumerate(random.random((400, 2)))]
    path.write_text("\n".join(["a,b,name,label", *rows]) + "\n")
    return path


HELD_OUT = (*USERS, "--public-users", "40", "--holdout", "0.2")
FULL = ("--batches", "truncated", "--largest-batch", "60")
KINDS: dict[str, tuple[tuple[str, ...], type[Event], str]] = {
    "records of users": (USERS, UserLevel, "Each record enters the batch of a step independently"),
    "users, some held out": (HELD_OUT, UserLevel, "Size of the training set: 32 users, a declared and public constant"),
    "truncated": (FULL, Truncated, "A batch of more than 60 records is replaced"),
    "cyclic": (("--batches", "cyclic", "--bands", "3"), BandedGaussian, "orthogonal to what it adds in another"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_run_folder(kind, tmp_path):
    options, event, said = KINDS[kind]
    data, out = table(tmp_path / "people.csv"), tmp_path / "run"
    if event is not UserLevel:
        data.write_text("\n".join(",".join(np.delete(line.split(","), 2)) for line in data.read_text().split()))
    given = tmp_path / "noise.toml"  # nothing is calibrated
    given.write_text("[privacy]\nnoise_multiplier = 6.0\n")
    succeeded(train(given, "--data", data, *BASE, *options, "--epsilon", "6", "--out", out))
    found = facts(out)
    [(recorded, times)] = Ledger.read(out / "ledger.jsonl").events.items()
    assert isinstance(recorded, event)
    assert found["event"]["mechanism"] == recorded.mechanism
    assert found["epsilon"] <= 6
    # What the report says of attacks is computed from the same releases as epsilon.
    attack = TradeOff(PldAccountant().compose({recorded: times}))
    caught = f"any attack finds at most {upward_percent(attack.true_positive_rate(0.01))} of those"
    assert caught in words(out / "report.html")
    statement = words(out / "privacy.txt")
    assert said in statement
    relation = "add or remove all records of one user" if event is UserLevel else "add or remove one record"
    assert found["neighbouring"] == relation
    assert f"Relation: {relation}. Unit: one {'user' if event is UserLevel else 'record'}" in statement
    assert relation in (out / "report.html").read_text()
    for path in out.iterdir():
        assert b"person-" not in path.read_bytes()
    audited = succeeded(noisette("audit", out, "--out", tmp_path / "audit"))
    assert "the stated cost was audited alone" in audited.stdout
    cost = json.loads((tmp_path / "audit" / "audit.json").read_text())["cost"]
    assert 0 < cost["least"] <= cost["delta"]
    refusal(noisette("audit", out, "--whole-run", "--out", tmp_path / "audit"), "leave --whole-run out")


def test_balls_in_bins_have_no_audit(tmp_path):
    succeeded(train("--epochs", "1", "--model", "linear", "--batches", "balls-in-bins", "--out", tmp_path / "run"))
    refused = noisette("audit", tmp_path / "run", "--out", tmp_path / "audit")
    refusal(refused, "the cost of balls-in-bins batches is not simulated")


REFUSED = {
    "no column": (("--users", "nam", "--records-per-user", "3"), "did you mean 'name'"),
    "the label": (("--users", "label", "--records-per-user", "3"), "no input and no label"),
    "too many bands": (("--batches", "cyclic", "--bands", "99"), "Use at most 10 bands"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case, tmp_path):
    options, message = REFUSED[case]
    data = table(tmp_path / "people.csv")
    if case == "too many bands":
        data.write_text("\n".join(",".join(np.delete(line.split(","), 2)) for line in data.read_text().split()))
    refusal(train("--data", data, *BASE, *options, "--out", tmp_path / "run"), message)
    assert not (tmp_path / "run").exists()
