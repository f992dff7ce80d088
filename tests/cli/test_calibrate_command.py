import json

import pytest
import typer
from typer.testing import CliRunner

from noisette.accounting import MomentsAccountant, PoissonGaussian
from noisette.cli.account import calibrate

app = typer.Typer()
app.command()(calibrate)

# A run within 0.2 % of its budget, by the moments accountant.
WHOLE = {
    "--epsilon": "1.26",
    "--delta": "1e-5",
    "--sampling-rate": "0.01",
    "--noise-multiplier": "4",
    "--steps": "10000",
}
BUDGET = {"--epsilon": "1.5", "--delta": "1e-5", "--sampling-rate": "0.02", "--steps": "500"}


def run(options, *flags):
    return CliRunner().invoke(app, [*(word for option in options.items() for word in option), *flags])


def without(option):
    return {name: value for name, value in WHOLE.items() if name != option}


@pytest.mark.parametrize(
    ("missing", "expected", "tolerance"),
    [
        ("noise_multiplier", 4.0, 0.005),
        ("steps", 10_000, 0.005),
        ("sampling_rate", 0.01, 0.005),
        ("epsilon", 1.2586, 5e-4),
        ("delta", 9.733e-6, 1e-3),
    ],
)
def test_each_number_is_found_from_the_other_four(missing, expected, tolerance):
    options = without("--" + missing.replace("_", "-"))
    result = run(options, "--accountant", "moments", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["found"] == missing
    assert facts[missing] == pytest.approx(expected, rel=tolerance)
    assert facts["epsilon"] <= 1.26
    release = PoissonGaussian(facts["sampling_rate"], facts["noise_multiplier"])
    curve = MomentsAccountant().compose({release: facts["steps"]})
    assert curve.epsilon(delta=facts["delta"] * (1 + 1e-12)) <= facts["epsilon"]
    shown = run(options, "--accountant", "moments").stdout
    assert shown.startswith(missing.replace("_", " "))
    if missing not in ("epsilon", "delta"):  # the printed number keeps the budget too
        numbers = {"sampling_rate": 0.01, "noise_multiplier": 4.0, "steps": 10_000}
        numbers[missing] = float(shown.splitlines()[0].split()[-1].replace(",", ""))
        release = PoissonGaussian(numbers["sampling_rate"], numbers["noise_multiplier"])
        assert MomentsAccountant().compose({release: int(numbers["steps"])}).epsilon(delta=1e-5) <= 1.26


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (WHOLE, ["noise_multiplier, steps, sampling_rate, epsilon, delta", "leave out"]),
        ({}, ["noise_multiplier, steps, sampling_rate, epsilon, delta are missing"]),
        ({"--epsilon": "1", "--steps": "0"}, ["noise_multiplier, sampling_rate, delta are missing", "steps >= 1"]),
        (BUDGET | {"--epsilon": "0"}, ["epsilon"]),
        (BUDGET | {"--epsilon": "-1", "--delta": "0", "--steps": "0"}, ["epsilon", "delta", "steps"]),
        (BUDGET | {"--sampling-rate": "2", "--plot": "a.pdf"}, ["sampling_rate", "--plot a.pdf"]),
        (without("--steps") | {"--noise-multiplier": "nan"}, ["noise_multiplier=nan"]),
        (BUDGET | {"--epsilon": "0.001", "--accountant": "moments"}, ["moments", "0.001"]),
        (BUDGET | {"--accountant": "strong-paper"}, ["strong-paper", "keeps no budget"]),
        (without("--steps") | {"--epsilon": "0.0001"}, ["one step costs more", "more noise"]),
    ],
)
def test_bad_input_gets_one_line_that_names_it_all(options, named):
    result = run(options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert all(words in result.stderr for words in named)


def test_a_plot_shows_the_budget(tmp_path):
    result = run(without("--steps"), "--accountant", "moments", "--plot", str(tmp_path / "curve.svg"))
    assert result.exit_code == 0
    assert "budget 1.26" in (tmp_path / "curve.svg").read_text()
