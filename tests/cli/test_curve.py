"""``noisette curve``: runs at several budgets, and what all of them cost."""

import json

import numpy as np

from command_line import noisette, refusal, succeeded, tree
from noisette import Ledger, PldAccountant

QUICK = ("--data", "digits", "--model", "linear", "--epochs", 2)


def test_a_run_at_each_budget_beside_a_baseline_and_their_joint_cost(tmp_path):
    shown = succeeded(noisette("curve", *QUICK, "--epsilon", "3,1"))
    place = tmp_path / "runs" / "digits-curve"
    assert {path.name for path in place.iterdir()} == {
        *("curve.html", "curve.json", "curve.svg", "curve-log-loss.svg"),
        *("epsilon-1", "epsilon-3", "without-privacy"),
    }
    told = json.loads((place / "curve.json").read_text())
    assert not told["private"]
    assert [run["epsilon"] <= budget for run, budget in zip(told["runs"], (1, 3), strict=True)] == [True, True]
    assert told["baseline"]["accuracy"] > 0.5
    released = [Ledger.read(place / name / "ledger.jsonl").events for name in ("epsilon-1", "epsilon-3")]
    assert abs(told["epsilon_of_all"] - PldAccountant().compose(released[0] | released[1]).epsilon(delta=1e-4)) < 1e-6
    assert "together cost epsilon" in shown.output
    assert "NOT PRIVATE" in shown.output
    refusal(noisette("curve", *QUICK), "choose another --out")
    refusal(noisette("curve", "--epsilom", "3"), "curve --help", "No such option: --epsilom")


def test_without_a_baseline_a_recipe_is_followed_and_nothing_is_called_not_private(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32), np.arange(300) % 2
    np.savez("two.npz", x_train=x[:200], y_train=y[:200], x_test=x[200:], y_test=y[200:])
    of_two = '[data]\nname = "two.npz"\nclasses = 2\nsize = 200\n[model]\nname = "linear"\n'
    (tmp_path / "own.toml").write_text(of_two + "[privacy]\ndelta = 1e-4\n[training]\nepochs = 1\nbatch_size = 100")
    given = ("--epsilon", "2", "--no-baseline", "--out", "there", "--json")
    told = json.loads(succeeded(noisette("curve", "own.toml", *given)).stdout)
    assert (told["private"], told["baseline"]) == (True, None)
    figures, constant = told["table"].values()
    assert [figure.split()[0] for figure in figures.split(", ")] == ["accuracy", "log", "AUC"]
    assert constant == "accuracy 0.5, log loss 0.6931"
    assert "NOT PRIVATE" not in (tmp_path / "there" / "curve.html").read_text()
    assert "epsilon-2/run.json" in tree(tmp_path / "there")
