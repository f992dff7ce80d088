import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from noisette.accounting import MomentsAccountant, PldAccountant, PoissonGaussian, RdpAccountant
from noisette.cli.account import account, calibrate
from noisette.cli.errors import plain_errors
from noisette.errors import PrivacyRefusal

app = typer.Typer()
app.command()(account)
app.command()(calibrate)

PLAN = {"--sampling-rate": "0.01", "--noise-multiplier": "4", "--steps": "10000", "--delta": "1e-5"}
BUDGET = {"--epsilon": "1.5", "--delta": "1e-5", "--sampling-rate": "0.02", "--steps": "500"}


def run(command, options, *flags):
    return CliRunner().invoke(app, [command, *(word for option in options.items() for word in option), *flags])


@pytest.mark.parametrize(("name", "epsilon"), [("pld", 0.9469), ("rdp", 1.0355), ("moments", 1.2586)])
def test_account_prices_a_run(name, epsilon):
    result = run("account", PLAN, "--accountant", name, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    assert facts.pop("epsilon") == pytest.approx(epsilon, rel=1e-3)
    assert facts == {
        "delta": 1e-5,
        "sampling_rate": 0.01,
        "noise_multiplier": 4.0,
        "steps": 10_000,
        "accountant": name,
        "neighbouring": "add or remove one record",
        "sampling": "Poisson",
    }


def test_the_table_names_what_the_number_rests_on():
    result = run("account", PLAN)
    assert result.exit_code == 0
    for fact in ("0.947", "1e-05", "10,000", "Poisson", "add or remove one record", "pld"):
        assert fact in result.stdout


def test_what_is_printed_is_never_less_than_what_is_meant():
    options = PLAN | {"--noise-multiplier": "3.3333333"}
    printed = float(run("account", options).stdout.split()[1])
    exact = json.loads(run("account", options, "--json").stdout)["epsilon"]
    assert exact <= printed <= exact * 1.0002


@pytest.mark.parametrize("accountant", [PldAccountant(), RdpAccountant(), MomentsAccountant()], ids=lambda a: a.name)
def test_calibrate_keeps_the_budget(accountant):
    result = run("calibrate", BUDGET, "--accountant", accountant.name, "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    price = accountant.price({PoissonGaussian(0.02, facts["noise_multiplier"]): 500}).epsilon(delta=1e-5)
    assert facts["epsilon"] == price
    assert 1.49 < price <= 1.5


@pytest.mark.parametrize(
    ("command", "options", "named"),
    [
        ("account", PLAN | {"--sampling-rate": "1.5"}, ["sampling_rate"]),
        ("account", PLAN | {"--sampling-rate": "0"}, ["sampling_rate"]),
        ("account", PLAN | {"--steps": "0"}, ["steps"]),
        ("account", PLAN | {"--noise-multiplier": "-1"}, ["noise_multiplier"]),
        ("account", PLAN | {"--delta": "nan"}, ["delta"]),
        ("account", PLAN | {"--delta": "1", "--steps": "-3", "--noise-multiplier": "0"}, ["delta", "steps", "noise"]),
        ("calibrate", BUDGET | {"--epsilon": "0"}, ["epsilon"]),
        ("calibrate", BUDGET | {"--epsilon": "-1", "--delta": "0", "--steps": "0"}, ["epsilon", "delta", "steps"]),
        ("calibrate", BUDGET | {"--epsilon": "0.001", "--accountant": "moments"}, ["moments", "0.001"]),
    ],
)
def test_bad_numbers_get_one_line_that_names_them_all(command, options, named):
    result = run(command, options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    assert all(name in result.stderr for name in named)


@pytest.mark.parametrize("wrong", [{"--steps": "ten"}, {"--accountant": "gdp"}, {"--steps": "1.5"}])
def test_what_cannot_be_read_is_refused(wrong):
    assert run("account", PLAN | wrong).exit_code == 2


@pytest.mark.parametrize("command", ["account", "calibrate"])
def test_help_names_every_option_with_its_range(command):
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, [command, "--help"])
    assert result.exit_code == 0
    for words in ("--sampling-rate", "at most 1", "--steps", "--delta", "below 1", "--accountant", "--json"):
        assert words in result.stdout


@pytest.mark.parametrize("error", [ValueError, TypeError, FileNotFoundError, PermissionError, PrivacyRefusal])
def test_a_refusal_becomes_a_message(error, capsys):
    with pytest.raises(typer.Exit) as exit_, plain_errors():
        raise error("the batch is too large; make it smaller")
    assert exit_.value.exit_code == 2
    assert capsys.readouterr().err == "Error: the batch is too large; make it smaller\n"


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), plain_errors():
        raise ZeroDivisionError


def test_pricing_needs_no_torch():
    script = "import sys, noisette.cli.account, noisette.accounting; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
