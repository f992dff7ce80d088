"""The code on the pages runs, their numbers are those of the library, and what is generated is up to date."""

import json
import re
import runpy
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch import nn

import noisette
from experiments.batch_norm import moved
from experiments.correlated_noise import BANDS, SETTINGS, errors
from experiments.marked import replaced
from experiments.tables_rates import BEGIN, END, rates_table
from noisette.data import load
from noisette.nn import PublicBatchNorm, lipschitz
from noisette.training.recipe import Recipe
from page_code import ROOT, blocks, names_of, text_of
from papers.davody_2020.mixture_batch_norm import MixtureBatchNorm
from tests.test_architecture import LEVEL

SOURCE = Path(noisette.__file__).parent


QUICK = [f"experiments.{name}" for name in ("table", "correlated_runs", "run_checks", "batch_norm", "clipless_page")]
LONG = [f"papers.{paper}" for paper in ("abadi_2016", "bethune_2024", "davody_2020", "lee_kifer_2020")]
LONG.append("experiments.correlated_noise")


@pytest.mark.parametrize("module", [*QUICK, *(pytest.param(module, marks=pytest.mark.slow) for module in LONG)])
def test_what_is_generated_is_up_to_date(module, monkeypatch):
    script = ROOT.joinpath(*module.split("."))
    monkeypatch.setattr(sys, "argv", [module, "--check"])
    code = None
    try:
        runpy.run_path(str(script / "__main__.py" if script.is_dir() else f"{script}.py"), run_name="__main__")
    except SystemExit as end:
        code = end.code
    assert not code, f"run: python -m {module}"


def test_the_table_has_every_entry_below_those_that_it_imports():
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", text_of("docs/architecture.md"), re.MULTILINE)
    assert set(rows) == LEVEL.keys() - {"__main__"}
    assert [LEVEL[row] for row in rows] == sorted(LEVEL[row] for row in rows)


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_and_registries_of_the_page_exist(page):
    text = text_of(page)
    named = {path for path in re.findall(r"`([\w/]+(?:/|\.py|\.pyi))`", text) if not re.search("NAME|FAMILY", path)}
    assert len(named) > 5
    assert [path for path in named if not any((top / path).exists() for top in (SOURCE, ROOT, ROOT / "src"))] == []
    registries = set(re.findall(r"`([A-Z_]{4,})`", text))
    assert {"CLIPPING_RULES", "ENGINES"} <= registries <= {"ACCOUNTANTS", "CLIPPING_RULES", "ENGINES"}
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("registry.py"))
    assert [name for name in registries if not re.search(rf"^{name}\b.* = ", code, re.MULTILINE)] == []


def test_each_decision_is_short_with_its_measurement_and_a_number_of_its_own():
    sections = re.split(r"^## ", text_of("docs/decisions.md"), flags=re.MULTILINE)[1:]
    entries = [section for section in sections if section[0].isdigit()]
    assert len(entries) > 30
    for entry in entries:
        title, _, text = entry.partition("\n")
        assert len(text.split()) <= 80, title
        assert "**Measured.**" in text, title
    numbers = [int(entry.partition(".")[0]) for entry in entries]
    assert numbers == sorted(set(numbers))


def test_code_of_the_page_exports_the_same_function():
    names = names_of(*blocks("docs/batch-norm.md"))
    assert torch.equal(names["exported"](names["images"][:4]), names["outputs"])


def test_numbers_of_batch_norm_are_those_of_the_library():
    text = " ".join(text_of("docs/batch-norm.md").split())
    for norm in (MixtureBatchNorm, PublicBatchNorm):
        without, joined = moved(norm)
        assert (without, joined) == pytest.approx((round(without), round(joined)), abs=1e-3)
        assert f"from {without:.0f} C to {joined:.0f} C" in text


ACCURACY, RATES = "docs/how-to/better-accuracy.md", "docs/how-to/choose-settings.md"


def test_the_loop_on_accuracy_runs_and_its_recipes_are_read():
    names = names_of(*blocks(ACCURACY))
    assert names["published"](names["images"]).isfinite().all()
    for block in blocks(ACCURACY, "toml"):
        assert Recipe.of(tomllib.loads(block), "the page") != Recipe()


def test_keys_and_names_of_the_page_exist():
    recipe = Recipe()
    known = {field.name for part in fields(recipe) for field in fields(getattr(recipe, part.name))}
    rows = [row.split("|") for row in text_of(ACCURACY).splitlines() if row.startswith("| ") and row.count("|") == 5]
    codes = [code for row in rows[1:] for code in re.findall(r"`([^`]*)`", row[2])]
    keys = {code.rpartition("] ")[2].partition(" ")[0] for code in codes if not code.startswith(("noisette", '"'))}
    assert len(keys) > 15
    assert keys <= known, keys - known


def test_code_on_settings_gives_the_stated_numbers_and_its_table_is_that_of_the_results():
    plan, loop, *_ = blocks(RATES)
    names = names_of(plan)
    assert (names["batches"].expected_batch_size, round(names["batches"].epochs, 1)) == (4001, 66.7)
    assert f"{names['delta']:.1e}" == "3.3e-06"
    exec(loop, names)
    with names["run"] as run:
        assert (run.steps, run.terms.epsilon) == (500, 3.0)
    assert 0 < names["optimizer"].param_groups[0]["lr"] < 30
    results = json.loads(text_of("benchmarks/results/tables-rates.json"))
    assert replaced(text_of(RATES), BEGIN, END, rates_table(results)) == text_of(RATES)


def test_code_of_the_clipless_page_trains_and_certifies():
    """The noise is random, so the numbers differ from those of the page by up to five deviations."""
    names = names_of(*blocks("docs/clipless.md"))
    unattacked, attacked = names["accuracies"]
    assert 0.82 < unattacked < 1
    assert 0.5 < attacked < 0.75
    assert 0.25 < names["radii"].median() < 0.42
    assert names["run"].epsilon(delta=1e-4) <= 2.48


SHARES = [
    (lipschitz.SphereInput(1.0), 30.0, noisette.FlatClipping(0.1), "has 98 to 100 % of the bound", 0.97, 1.0),
    (lipschitz.BoundedInput(3.0), 3.0, None, "it is about 70 %", 0.65, 0.75),
]


@pytest.mark.parametrize(("bounded", "tau", "clipping", "said", "least", "most"), SHARES)
def test_gradients_use_the_stated_share_of_the_bound(bounded, tau, clipping, said, least, most):
    assert said in text_of("docs/clipless.md")
    hidden = lipschitz.SpectralLinear(64, 64), lipschitz.GroupSort2(), lipschitz.SpectralLinear(64, 10)
    model, loss = nn.Sequential(nn.Flatten(), bounded, *hidden), lipschitz.TauCrossEntropy(tau)
    bound = noisette.LipschitzBound(model, loss=loss, input_shape=(1, 8, 8), logit_clipping=clipping)
    digits, used = load("digits").test, []
    for image, digit in zip(digits.inputs[:60], digits.targets[:60], strict=True):
        bound.accumulate(lambda model, x, y: loss(model(x), y), torch.tensor(image)[None] - 0.5, torch.tensor([digit]))
        used += [float(part.grads[0].norm()) / part.bound for part in bound.pop_sums()]
    assert least < sum(used) / len(used) <= most


def test_constants_of_the_losses_are_those_of_the_table():
    page = text_of("docs/clipless.md")
    stated = {
        "TauCrossEntropy(tau)": (lipschitz.TauCrossEntropy(3.0), "sqrt 2;", 2**0.5),
        "TauBCE(tau)": (lipschitz.TauBCE(3.0), "1 ", 1.0),
        "HuberLoss(delta)": (lipschitz.HuberLoss(0.5), "delta |", 0.5),
    }
    for call, (loss, said, constant) in stated.items():
        assert f"`{call}` | {said}" in page
        assert loss.lipschitz() == pytest.approx(constant)


CORRELATED = "docs/how-to/correlated-noise.md"


def test_the_loop_with_correlated_noise_trains_within_its_budget(capsys):
    loop, of_own_numbers = blocks(CORRELATED)
    found = names_of(loop)
    assert 5.9 < found["epsilon"] <= 6.0
    with torch.no_grad():
        assert (found["model"](found["inputs"]).argmax(1) == found["targets"]).float().mean() > 0.7
    capsys.readouterr()
    names_of(of_own_numbers)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [int(bands) for bands, _ in rows] == [1, 2, 4, 8, 16]
    assert float(rows[3][1]) < 0.8 * float(rows[0][1])


@pytest.mark.parametrize(("place", "epsilon"), [(0, 8.0), (1, 1.0)])
def test_the_table_has_the_best_number_of_bands(place, epsilon, monkeypatch):
    monkeypatch.setattr("experiments.correlated_noise.BANDS", BANDS[::3] if place else (1, 20, 32, 48))
    of_bands = errors(*list(SETTINGS.values())[place], epsilon)
    best = min(of_bands, key=lambda bands: of_bands[bands])
    row = [line for line in text_of(CORRELATED).splitlines() if re.match(r"\| \d+ %, \d+ \|", line)][place]
    assert f"{best} band{'s' if best > 1 else ''}: {of_bands[best]:.2f}" in row


@pytest.mark.slow
def test_numbers_of_scikit_learn_are_about_the_stated_ones():
    names = names_of(*blocks("docs/how-to/scikit-learn.md"))
    assert names["model"].score(names["X_test"], names["y_test"]) > 0.85
    assert names["trial"].read_from_rows_ == ("classes", "size", "bounds")
    assert names["pipeline"].score(names["people"], names["rent"]) > 0.8
    assert 2.9 < names["shared"].epsilon_ <= 3
    assert len(names["ledger"].events) == 2


def test_the_code_on_users_prints_what_its_comments_state(capsys):
    [block] = blocks("docs/how-to/guarantees-for-users.md")
    names_of(block)
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", block)


def test_the_loop_that_is_logged_follows_getting_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    [start], [logged] = blocks("docs/index.md"), blocks("docs/how-to/log-a-run.md")
    history = names_of(f"{start.partition('for batch in')[0]}\n{logged}")["history"]
    assert len(history) == 20
    assert history[0]["epsilon"] < history[-1]["epsilon"] <= 3
    assert {*history[0]} == {"epsilon", "norm of weights"}
    assert "Privacy statement" in (tmp_path / "report.html").read_text()
