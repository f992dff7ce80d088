"""The statement and the report of a run in a loop of one's own."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import noisette
from noisette.nn import lipschitz
from small_loop import loss, start, take_steps

RECORDS = torch.randn(400, 3), torch.randint(0, 2, (400,))
DECLARED: Any = {"sampling_rate": 0.1, "expected_batch_size": 40, "steps": 4, "noise_multiplier": 2.0, "delta": 1e-4}


def run_of(model: nn.Module | None = None, clipping: Any = None, **declared: Any) -> noisette.PrivateRun:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)) if model is None else model
    clip = {"max_grad_norm": 1.5} if clipping is None else {"clipping": clipping}
    return start(model, RECORDS, clip=clip, **DECLARED | declared)


def trained(run: noisette.PrivateRun, steps: int = 4) -> noisette.PrivateRun:
    take_steps(run, size=64, steps=steps)
    return run


def words(run: Any, delta: float = 1e-4) -> str:
    return " ".join(run.statement(delta=delta).split())


def test_the_statement_says_what_holds_and_nothing_that_a_loop_may_break(tmp_path):
    with trained(run_of(ledger=tmp_path / "spent.jsonl")) as run:
        said, epsilon = words(run), run.epsilon(delta=1e-4)
    stated = float(re.search(r"epsilon = (\d+\.\d\d)", said)[1])  # type: ignore[index]
    assert epsilon <= stated <= epsilon + 0.01
    for part in (
        *("add or remove one record. Unit: one record", "Contract: the loss is a function of one example"),
        *("independently with probability 0.1.", "a Euclidean norm of at most 1.5, so one record moves the sum of a"),
        *("the engine book-keeping (one backward pass)", "standard deviation 2 times 1.5", "divided by 40, a"),
        *("4 planned, 4 reserved in the ledger and covered by epsilon, 4 carried out", "Size of the training set: 400"),
        f"the file spent.jsonl; the seal of its last line is {run.ledger.head}",
    ):
        assert part in said, part
    for claim in ("published none", "seed", "Test", "test", "Unsafe", "None", "this run alone"):
        assert claim not in said, claim


def test_epsilon_covers_what_was_declared_together_as_statement_and_report_say(tmp_path):
    ledger, said = noisette.Ledger(), "Epsilon covers further releases (4), declared together with this run"
    with trained(run_of(ledger=ledger, declaration="both")) as first:
        assert said not in words(first)
    with trained(run_of(ledger=ledger, declaration="both"), steps=3) as second:
        assert second.epsilon(delta=1e-4) == first.epsilon(delta=1e-4)
        second.report(tmp_path / "report.html", delta=1e-4)
        assert said in words(second)
    assert said in " ".join((tmp_path / "report.html").read_text().split())


def test_a_statement_within_a_batch_leaves_its_gradients_alone():
    sums = []
    for asks in (False, True):
        torch.manual_seed(0)
        run = run_of(nn.Linear(3, 2))
        for x, y in next(run.batches()).microbatches(64):
            run.accumulate(loss, x * 0 + 1, y * 0)
            if asks:
                run.statement(delta=1e-4)
        sums.append(float(sum(g.abs().sum() for part in run.bound.pop_sums() for g in part.grads)))
        run.close()
    assert min(sums) > 0


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (noisette.PerLayerClipping(2.0), "in each of 2 layers to a Euclidean norm of at most 1.41421"),
        (noisette.AutomaticClipping(2.0), "multiplied by 2 / (its Euclidean norm + 0.01)"),
        (noisette.AdaptiveClip(0.3, target_quantile=0.9), "follows the 0.9 quantile of these norms"),
        (noisette.GroupwiseClipping({"0": 3.0, "2": 4.0}), "2.82843 times the bound of its group; bounds are from 3"),
    ],
)
def test_every_clipping_rule_has_its_words(rule, said):
    with trained(run_of(clipping=rule)) as run:
        assert said in words(run)


def test_a_guarantee_for_users_and_a_large_delta_are_said(tmp_path):
    with trained(run_of(users=noisette.Users([k // 2 for k in range(400)], 2))) as run:
        said = words(run, 0.1)
    assert "one user, with all records of the training set that have the same id in Users" in said
    assert "Large delta: it is not below one over the declared size, 2.5e-3" in said
    assert "The ledger is in memory alone" in said


def test_a_loop_without_noise_is_called_not_private(tmp_path, monkeypatch):
    """The way to debug a loop: gradients are clipped as they will be, and the noise is too small to matter."""
    monkeypatch.setitem(DECLARED, "noise_multiplier", 1e-9)
    with trained(run_of()) as run:
        run.report(tmp_path / "report.html", delta=1e-4)
        assert "NOT PRIVATE: epsilon is infinite" in words(run)
        assert "differentially private" not in words(run)
    assert "NOT PRIVATE" in (tmp_path / "report.html").read_text()


def test_the_report_is_one_page_with_curve_bounds_settings_and_statement(tmp_path):
    with trained(run_of(), steps=2) as run:
        run.report(tmp_path / "report.html", delta=1e-6)
        text = run.statement(delta=1e-4)
    page = (tmp_path / "report.html").read_text()
    said = 'role="img"', "ε against steps", "a coin toss is right 50 %", "Privacy statement", "2 of 4", "δ = 1e-6"
    for part in said:
        assert part in page, part
    assert "script" not in page
    assert "http" not in page.replace("http://www.w3.org", "")
    assert "Privacy statement" in text._repr_html_()
    assert isinstance(text, str)
    empty = run_of()
    empty.report(tmp_path / "empty.html", delta=1e-4)
    empty.close()
    assert "differentially private" in (tmp_path / "empty.html").read_text()


def test_a_network_whose_layers_bound_the_gradient_has_its_words():
    layers = lipschitz.SpectralLinear(3, 4), lipschitz.GroupSort2(), lipschitz.SpectralLinear(4, 2)
    model = nn.Sequential(lipschitz.BoundedInput(1.0), *layers)
    criterion = lipschitz.TauCrossEntropy(8.0)
    bound = noisette.LipschitzBound(model, loss=criterion, input_shape=(3,), logit_clipping=noisette.FlatClipping(0.5))
    with noisette.privatize(bound, torch.optim.SGD(model.parameters(), lr=0.1), RECORDS, **DECLARED) as run:
        said = words(run)
    for part in (
        *("so has the loss, which is noisette's TauCrossEntropy.", "scaled to a norm of at most 0.5"),
        "for each parameter, by a Euclidean norm of at most: 1.weight",
        "Noise: Gaussian, on every element of every step's sum, with a standard deviation for each parameter: 1.weight",
    ):
        assert part in said, part
