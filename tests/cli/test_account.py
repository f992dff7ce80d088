"""``noisette account`` and ``noisette calibrate``: the answers, by which accountant, and what is refused."""

import json
import math

import pytest
import typer

from command_line import noisette, refusal, succeeded
from noisette.accounting import BandedGaussian, GroupPrivacy, MomentsAccountant, PoissonGaussian, RdpAccountant
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli.account import rounded_down, rounded_up
from noisette.cli.options import plain_errors
from noisette.errors import PrivacyError

# The reference run of Abadi et al. 2016, section 5.
RUN = {"--sampling-rate": "0.01", "--noise-multiplier": "4", "--steps": "10000"}
PLAN = RUN | {"--delta": "1e-5"}
EXPECTED = {"--expected-batch-size": "600", "--size": "60000", "--noise": "4", "--epochs": "100", "--delta": "1e-5"}
# Within 0.2 % of its budget by the moments accountant.
WHOLE = {"--epsilon": "1.26", "--delta": "1e-5"} | RUN
BUDGET = {"--epsilon": "1.5", "--delta": "1e-5", "--sampling-rate": "0.02", "--steps": "500"}


def run(options, *flags):
    return noisette("account", *(word for option in options.items() for word in option), *flags)


def facts(options, *flags):
    return json.loads(succeeded(run(options, *flags, "--json")).stdout)


def without(*names):
    return {name: value for name, value in WHOLE.items() if name not in names}


@pytest.mark.parametrize(
    ("name", "epsilon", "tolerance"), [("pld", 0.9469, 1e-3), ("rdp", 1.0355, 5e-4), ("moments", 1.2586, 5e-4)]
)
def test_epsilon_of_a_run(name, epsilon, tolerance):
    found = facts(PLAN, "--accountant", name)
    assert found.pop("epsilon") == pytest.approx(epsilon, rel=tolerance)
    asked = {"found": "epsilon", "delta": 1e-5, "sampling_rate": 0.01, "noise_multiplier": 4.0, "steps": 10_000}
    assert found == asked | {"accountant": name, "neighbouring": "add or remove one record", "sampling": "Poisson"}
    assert facts(EXPECTED, "--accountant", name)["epsilon"] == pytest.approx(epsilon, rel=tolerance)


def test_an_accountant_that_does_not_support_the_events_is_refused_with_the_way_out():
    result = run(PLAN, "--accountant", "gdp")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "gdp" in result.stderr
    assert "PoissonGaussian(sampling_rate=0.01, noise_multiplier=4)" in result.stderr
    budget = {"--sampling-rate": "0.01", "--steps": "10000", "--delta": "1e-5", "--epsilon": "3"}
    assert "noise_multiplier=1e+06)" in run(budget, "--accountant", "gdp").stderr


def test_a_group_is_protected_as_a_whole_and_bands_are_counted_in_rounds():
    found = facts(PLAN | {"--group-size": "3", "--accountant": "rdp"})
    release = GroupPrivacy(PoissonGaussian(0.01, 4.0), 3)
    assert found["epsilon"] == RdpAccountant().compose({release: 10_000}).epsilon(delta=1e-5)
    assert found["neighbouring"] == "add or remove a group of 3 records"
    assert found["noise_multiplier"] == 4
    assert "add or remove a group of 3 records" in run(PLAN | {"--group-size": "3"}).stdout
    found = facts(PLAN | {"--bands": "8"})
    assert found["epsilon"] == ACCOUNTANTS["pld"].compose({BandedGaussian(0.01, 4.0, 8): 10_000}).epsilon(delta=1e-5)
    assert (found["bands"], found["sampling"]) == (8, "cyclic Poisson")
    assert "8: a round that was begun counts as a whole" in run(PLAN | {"--bands": "8"}).stdout


def test_printed_epsilon_is_never_less_than_the_exact_one():
    options = PLAN | {"--noise-multiplier": "3.3333333"}
    shown = run(options).stdout
    assert all(fact in shown for fact in ("1e-05", "10,000", "Poisson", "add or remove one record", "pld"))
    printed, exact = float(shown.split()[1]), facts(options)["epsilon"]
    assert exact <= printed <= exact * 1.0002
    infinite = facts(PLAN | {"--noise-multiplier": "0.0001"})
    assert float(infinite["epsilon"]) == math.inf, "a string, as JSON has no such number"


@pytest.mark.parametrize("value", [0.0, 1e-320, 1 / 3, 0.999999, 123456.7, 1e308, math.inf])
def test_rounding_goes_one_way_for_every_size_of_number(value):
    assert float(rounded_down(value)) <= value <= float(rounded_up(value))
    assert float(rounded_up(value)) == pytest.approx(value, rel=1.1e-4)


@pytest.mark.parametrize(
    ("missing", "expected", "tolerance"),
    [("noise_multiplier", 4.0, 0.005), ("steps", 10_000, 0.005), ("epsilon", 1.2586, 5e-4), ("delta", 9.733e-6, 1e-3)],
)
def test_each_number_is_found_from_the_other_four(missing, expected, tolerance):
    options = without("--" + missing.replace("_", "-"))
    found = facts(options, "--accountant", "moments")
    assert (found["found"], found[missing]) == (missing, pytest.approx(expected, rel=tolerance))
    assert found["epsilon"] <= 1.26
    release = PoissonGaussian(found["sampling_rate"], found["noise_multiplier"])
    curve = MomentsAccountant().compose({release: found["steps"]})
    assert curve.epsilon(delta=found["delta"] * (1 + 1e-12)) <= found["epsilon"]
    shown = noisette("calibrate", *(w for option in options.items() for w in option), "--accountant", "moments").stdout
    assert shown.startswith(missing.replace("_", " "))
    if missing not in ("epsilon", "delta"):  # the printed number keeps the budget too
        numbers = {"noise_multiplier": 4.0, "steps": 10_000}
        numbers[missing] = float(shown.splitlines()[0].split()[-1].replace(",", ""))
        release = PoissonGaussian(0.01, numbers["noise_multiplier"])
        assert MomentsAccountant().compose({release: int(numbers["steps"])}).epsilon(delta=1e-5) <= 1.26


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (PLAN | {"--bands": "101"}, ["Use at most 100 bands"]),
        (PLAN | {"--bands": "2", "--group-size": "2"}, ["leave group_size out"]),
        (BUDGET | {"--bands": "2"}, ["give epsilon or delta alone"]),
        (PLAN | {"--expected-batch-size": "5"}, ["exactly one of sampling_rate and expected_batch_size", "belong"]),
        (EXPECTED | {"--expected-batch-size": "0", "--epochs": "-1"}, ["expected_batch_size > 0", "epochs > 0"]),
        (WHOLE, ["noise_multiplier, steps, sampling_rate, epsilon, delta", "leave out"]),
        (BUDGET | {"--delta": "1e-300"}, ["expected delta above 1e-30", "got delta=1e-300"]),
        ({}, ["noise_multiplier, steps, sampling_rate, epsilon, delta are missing"]),
        (without("--steps") | {"--noise-multiplier": "nan"}, ["noise_multiplier=nan"]),
        (without("--sampling-rate"), ["the sampling rate is not solved for"]),
        (without("--steps") | {"--epsilon": "0.0001"}, ["one step costs more", "more noise"]),
    ],
)
def test_bad_input_gets_one_line_that_names_it_all(options, named):
    result = refusal(run(options), *named)
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)
    assert result.stderr.startswith("Error: ")


def test_an_error_of_the_library_becomes_a_message_and_a_defect_keeps_its_traceback(capsys):
    for error in (ValueError, TypeError, PermissionError, PrivacyError):
        with pytest.raises(typer.Exit) as exit_, plain_errors():
            raise error("the batch is too large; make it smaller")
        assert exit_.value.exit_code == 2
        assert capsys.readouterr().err == "Error: the batch is too large; make it smaller\n"
    with pytest.raises(ZeroDivisionError), plain_errors():
        raise ZeroDivisionError
