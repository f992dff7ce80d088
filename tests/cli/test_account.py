import importlib
import json
import math
from types import SimpleNamespace
from xml.etree import ElementTree as Xml

import pytest
import typer
from typer.testing import CliRunner

from command_line import noisette
from noisette.accounting import (
    BandedGaussian,
    FixedSizeGaussian,
    GroupPrivacy,
    MomentsAccountant,
    PoissonGaussian,
    RdpAccountant,
)
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli import options
from noisette.cli.account import account, rounded_down, rounded_up
from noisette.cli.options import plain_errors
from noisette.errors import PrivacyError
from noisette.training.recipe import PrivacySection, Recipe

app = typer.Typer()
app.command()(account)

# The reference run of Abadi et al. 2016, section 5.
RUN = {"--sampling-rate": "0.01", "--noise-multiplier": "4", "--steps": "10000"}
PLAN = RUN | {"--delta": "1e-5"}
FULL = {"--sampling-rate": "1", "--noise-multiplier": "10", "--steps": "100", "--delta": "1e-5"}
FIXED = {"--batch-size": "600", "--size": "60000", "--noise-multiplier": "4", "--steps": "100", "--delta": "1e-5"}

EXPECTED = {"--expected-batch-size": "600", "--size": "60000", "--noise": "4", "--epochs": "100", "--delta": "1e-5"}


def run(options, *flags):
    return CliRunner().invoke(app, [*(word for option in options.items() for word in option), *flags])


def facts(options, *flags):
    result = run(options, *flags, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("name", "epsilon", "tolerance"),
    [("pld", 0.9469, 1e-3), ("rdp", 1.0355, 5e-4), ("moments", 1.2586, 5e-4), ("strong-paper", 9.339, 1e-4)],
)
def test_epsilon_of_a_run(name, epsilon, tolerance):
    found = facts(PLAN, "--accountant", name)
    assert found.pop("epsilon") == pytest.approx(epsilon, rel=tolerance)
    assert found == {
        "found": "epsilon",
        "delta": 1e-5,
        "sampling_rate": 0.01,
        "noise_multiplier": 4.0,
        "steps": 10_000,
        "accountant": name,
        "upper_bound": name != "strong-paper",
        "neighbouring": "add or remove one record",
        "sampling": "Poisson",
    }


def test_the_printed_strong_composition_is_called_no_guarantee():
    result = run(PLAN | {"--accountant": "strong-paper"})
    assert result.stdout.split()[1].startswith("9.339")
    assert "the printed, optimistic form: no guarantee" in result.stdout


def test_an_accountant_that_does_not_support_the_events_is_refused_with_the_way_out():
    result = run(PLAN, "--accountant", "gdp")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "gdp" in result.stderr
    assert "PoissonGaussian(sampling_rate=0.01, noise_multiplier=4.0)" in result.stderr


@pytest.mark.parametrize(("name", "delta"), [("pld", 4.246e-6), ("rdp", 1.764e-5), ("moments", 7.547e-4)])
def test_an_epsilon_gives_a_delta_instead(name, delta):
    found = facts(RUN | {"--epsilon": "1", "--accountant": name})
    assert found["found"] == "delta"
    assert found["epsilon"] == 1
    assert found["delta"] == pytest.approx(delta, rel=1e-3)


def test_batches_of_a_fixed_size_are_for_replacing_one_record():
    found = facts(FIXED, "--accountant", "rdp")
    release = FixedSizeGaussian(600, 60_000, 4.0)
    assert found["epsilon"] == RdpAccountant().compose({release: 100}).epsilon(delta=1e-5)
    assert found["neighbouring"] == "replace one record"
    assert (found["batch_size"], found["size"]) == (600, 60_000)
    shown = run(FIXED, "--accountant", "rdp").stdout
    assert all(words in shown for words in ("60,000", "without replacement", "replace one record", "× clipping norm"))
    with_epochs = {name: value for name, value in FIXED.items() if name != "--steps"} | {"--epochs": "1"}
    assert facts(with_epochs) == facts(FIXED)


def test_a_group_is_protected_as_a_whole():
    found = facts(PLAN | {"--group-size": "3", "--accountant": "rdp"})
    release = GroupPrivacy(PoissonGaussian(0.01, 4.0), 3)
    assert found["epsilon"] == RdpAccountant().compose({release: 10_000}).epsilon(delta=1e-5)
    assert found["neighbouring"] == "add or remove a group of 3 records"
    assert found["noise_multiplier"] == 4


def test_printed_epsilon_is_never_less_than_the_exact_one():
    options = PLAN | {"--noise-multiplier": "3.3333333"}
    shown = run(options).stdout
    assert all(fact in shown for fact in ("1e-05", "10,000", "Poisson", "add or remove one record", "pld"))
    printed = float(shown.split()[1])
    exact = facts(options)["epsilon"]
    assert exact <= printed <= exact * 1.0002


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-320, 3.1e-17, 0.1, 1 / 3, 0.999999, 2.0, 123456.7, 1e308, math.inf])
def test_rounding_goes_one_way_for_every_size_of_number(value):
    assert float(rounded_down(value)) <= value <= float(rounded_up(value))
    assert float(rounded_up(value)) == pytest.approx(value, rel=1.1e-4)


def test_infinite_epsilon_is_valid_json():
    found = facts(PLAN | {"--noise-multiplier": "0.0001"})
    assert float(found["epsilon"]) == math.inf


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (PLAN | {"--sampling-rate": "1.5"}, ["sampling_rate"]),
        (PLAN | {"--steps": "1" + "0" * 30}, ["steps <= 1e+12"]),
        (PLAN | {"--steps": "1" + "0" * 400}, ["steps <= 1e+12"]),
        (PLAN | {"--bands": "0"}, ["bands >= 1"]),
        (PLAN | {"--bands": "101"}, ["Use at most 100 bands"]),
        (FIXED | {"--bands": "2"}, ["leave batch_size and group_size out"]),
        (PLAN | {"--bands": "2", "--group-size": "2"}, ["leave batch_size and group_size out"]),
        (PLAN | {"--noise-multiplier": "inf"}, ["noise_multiplier"]),
        (PLAN | {"--delta": "nan"}, ["delta"]),
        (PLAN | {"--delta": "1", "--steps": "-3", "--noise-multiplier": "0"}, ["delta", "steps", "noise"]),
        (PLAN | {"--epsilon": "1"}, ["exactly one of delta and epsilon"]),
        (RUN, ["exactly one of delta and epsilon"]),
        (RUN | {"--epsilon": "-1"}, ["epsilon=-1"]),
        (
            PLAN | {"--batch-size": "5"},
            ["exactly one of sampling_rate, expected_batch_size and batch_size", "need size"],
        ),
        (PLAN | {"--size": "5"}, ["size needs batch_size or expected_batch_size"]),
        (EXPECTED | {"--expected-batch-size": "70000"}, ["at most all 60000 records"]),
        (EXPECTED | {"--expected-batch-size": "0", "--epochs": "-1"}, ["expected_batch_size > 0", "epochs > 0"]),
        (EXPECTED | {"--steps": "5"}, ["exactly one of steps and epochs"]),
        (FIXED | {"--batch-size": "0"}, ["batch_size >= 1"]),
        (FIXED | {"--batch-size": "70000"}, ["at most all 60000 records"]),
        (FIXED | {"--group-size": "2", "--steps": "0"}, ["group_size", "steps"]),
        (PLAN | {"--group-size": "0"}, ["group_size"]),
        (PLAN | {"--plot": "curve.jpg", "--delta": "2"}, [".png, .svg, .html", "delta"]),
        (PLAN | {"--plot": "no/such/folder/curve.png", "--delta": "2"}, ["no/such/folder", "delta"]),
        (PLAN | {"--plot": "."}, [".png"]),
    ],
)
def test_bad_numbers_get_one_line_that_names_them_all(options, named):
    result = run(options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("Error: ")
    assert all(name in result.stderr for name in named)


@pytest.mark.parametrize("suffix", ["png", "html", "SVG"])
def test_a_plot_is_written_whole_beside_the_answer(suffix, tmp_path):
    file = tmp_path / f"curve.{suffix}"
    file.write_text("older")
    found = facts(FULL | {"--accountant": "moments", "--plot": str(file)})
    assert found["epsilon"] == pytest.approx(5.3026, rel=5e-4)
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]
    start = {"png": b"\x89PNG", "svg": b"<svg", "html": b"<!doctype html>"}[suffix.lower()]
    assert file.read_bytes().startswith(start)


def test_a_plot_names_every_accountant_that_supports_the_run(tmp_path):
    assert run(PLAN | {"--accountant": "gdp", "--plot": str(tmp_path / "curve.svg")}).exit_code == 2
    assert list(tmp_path.iterdir()) == []
    run(PLAN | {"--accountant": "moments", "--plot": str(tmp_path / "curve.svg")})
    shown = "".join(Xml.fromstring((tmp_path / "curve.svg").read_text()).itertext())
    assert all(f"{name} " in shown for name in ACCOUNTANTS if name != "gdp")
    assert "gdp" not in shown
    assert "moments 1.2586" in shown


@pytest.mark.parametrize("error", [ValueError, TypeError, FileNotFoundError, PermissionError, PrivacyError])
def test_an_error_of_the_library_becomes_a_message(error, capsys):
    with pytest.raises(typer.Exit) as exit_, plain_errors():
        raise error("the batch is too large; make it smaller")
    assert exit_.value.exit_code == 2
    assert capsys.readouterr().err == "Error: the batch is too large; make it smaller\n"


def test_a_defect_keeps_its_traceback():
    with pytest.raises(ZeroDivisionError), plain_errors():
        raise ZeroDivisionError


@pytest.fixture
def dummy(monkeypatch):
    """An accountant that is registered while a test runs: epsilon is the number of releases."""

    class Dummy:
        name, description, method = "dummy", "counts releases", "counting (DUMMY)"
        upper_bound, in_recipes = True, True

        def compose(self, events):
            return SimpleNamespace(epsilon=lambda *, delta: float(sum(events.values())), delta=lambda *, epsilon: 0.5)

    monkeypatch.setitem(ACCOUNTANTS, "dummy", Dummy())
    importlib.reload(options)
    yield
    monkeypatch.undo()
    importlib.reload(options)


@pytest.mark.usefixtures("dummy")
def test_a_registered_accountant_is_offered_everywhere():
    assert facts(PLAN, "--accountant", "dummy")["epsilon"] == 10_000
    assert "dummy (counts releases)" in run(PLAN, "--accountant", "dummy").stdout
    shown = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["--help"]).stdout
    assert "naive|gdp|dummy]" in shown
    assert "dummy:" in shown
    assert Recipe(privacy=PrivacySection(accountant="dummy")).privacy.accountant == "dummy"


def test_an_accountant_that_is_not_registered_is_refused_with_the_names_that_are():
    result = CliRunner(env={"COLUMNS": "200", "TERM": "dumb"}).invoke(app, ["--accountant", "dummy"])
    assert result.exit_code == 2
    assert "'dummy' is not one of pld, rdp, moments, strong, strong-paper, naive, gdp" in result.stderr
    with pytest.raises(ValueError, match="one of pld, rdp, moments, got 'dummy'"):
        Recipe(privacy=PrivacySection(accountant="dummy"))


def test_epochs_and_an_expected_batch_stand_for_steps_and_rate():
    assert facts(EXPECTED) == facts(PLAN)


def test_bands():
    found = facts(PLAN | {"--bands": "8"})
    event = BandedGaussian(0.01, 4.0, 8)
    assert found["epsilon"] == ACCOUNTANTS["pld"].compose({event: 10_000}).epsilon(delta=1e-5)
    assert (found["bands"], found["sampling"]) == (8, "cyclic Poisson")
    assert "8: a round that was begun counts as a whole" in run(PLAN | {"--bands": "8"}).stdout
    assert facts(PLAN | {"--bands": "1"})["epsilon"] == facts(PLAN)["epsilon"]


# noisette calibrate

# A run within 0.2 % of its budget, by the moments accountant.
WHOLE = {
    "--epsilon": "1.26",
    "--delta": "1e-5",
    "--sampling-rate": "0.01",
    "--noise-multiplier": "4",
    "--steps": "10000",
}
BUDGET = {"--epsilon": "1.5", "--delta": "1e-5", "--sampling-rate": "0.02", "--steps": "500"}


def without(option):
    return {name: value for name, value in WHOLE.items() if name != option}


def calibrated(options, *flags):
    return noisette("calibrate", *(word for option in options.items() for word in option), *flags)


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
    result = calibrated(options, "--accountant", "moments", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["found"] == missing
    assert facts[missing] == pytest.approx(expected, rel=tolerance)
    assert facts["epsilon"] <= 1.26
    release = PoissonGaussian(facts["sampling_rate"], facts["noise_multiplier"])
    curve = MomentsAccountant().compose({release: facts["steps"]})
    assert curve.epsilon(delta=facts["delta"] * (1 + 1e-12)) <= facts["epsilon"]
    shown = calibrated(options, "--accountant", "moments").stdout
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
        (BUDGET | {"--sampling-rate": "2"}, ["sampling_rate"]),
        (without("--steps") | {"--noise-multiplier": "nan"}, ["noise_multiplier=nan"]),
        (BUDGET | {"--epsilon": "0.001", "--accountant": "moments"}, ["moments", "0.001"]),
        (BUDGET | {"--accountant": "strong-paper"}, ["strong-paper", "keeps no budget"]),
        (without("--steps") | {"--epsilon": "0.0001"}, ["one step costs more", "more noise"]),
    ],
)
def test_bad_input_of_calibrate_gets_one_line_that_names_it_all(options, named):
    result = calibrated(options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert all(words in result.stderr for words in named)
