import json
import math
from pathlib import Path

import pytest

from command_line import noisette, refusal, succeeded
from noisette import Ledger, PldAccountant
from noisette.accounting import GroupPrivacy, PoissonGaussian, TruncatedPoissonGaussian, UserLevel, ZcdpAmount
from noisette.accounting.events import BallsInBinsGaussian, BandedGaussian, DpAmount, FixedSizeGaussian, Gaussian
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.registry import ACCOUNTANTS
from noisette.cli.account import rounded_up
from noisette.training.run_folder import sealed

PROJECTION = Gaussian(7.0, (("principal components", 1.0),))
FIRST = PoissonGaussian(0.01, 4.0)
SECOND = PoissonGaussian(0.004266, 1.1, (("gradient", 0.99), ("clipping count", 0.01)))


@pytest.fixture
def folder(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl", dataset="mnist") as ledger:
        ledger.charge(PROJECTION)
        ledger.reserve(FIRST, 1200)
        for _ in range(3):
            ledger.commit()
        ledger.release()
        ledger.reserve(SECOND, 50)
    return tmp_path


def run(*words):
    return noisette("ledger", *words)


def facts(*words):
    return json.loads(succeeded(run(*words, "--json")).stdout)


def test_show_lists_each_mechanism_with_its_counts(folder):
    result, head = succeeded(run("show", folder)), Ledger.read(folder / "ledger.jsonl").head
    shown = " ".join(result.stdout.split())
    said = ("rate 0.01, 1,200 3 1,197 3 noise 4", "principal", "data set mnist", "add or remove one record", head)
    assert all(words in shown for words in said)
    shown = facts("show", folder / "ledger.jsonl")
    assert (shown["dataset"], shown["neighbouring"], shown["head"]) == ("mnist", ["add or remove one record"], head)
    counts = ("reserved", "committed", "given_back", "charged", "paid")
    found = [tuple(row[name] for name in counts) for row in shown["mechanisms"]]
    assert found == [(0, 0, 0, 1, 1), (1200, 3, 1197, 0, 3), (50, 0, 0, 0, 50)]
    assert shown["mechanisms"][2]["parts"] == {"gradient": 0.99, "clipping count": 0.01}


def test_price_is_the_cost_of_all_releases_by_all_accountants(folder):
    priced = facts("price", folder, "--delta", "1e-5")
    epsilon = {row["accountant"]: row["epsilon"] for row in priced["prices"]}
    (rdp,) = facts("price", folder, "--delta", "1e-5", "--accountant", "rdp")["prices"]
    assert (rdp["accountant"], rdp["epsilon"]) == ("rdp", epsilon["rdp"])
    assert epsilon["pld"] == PldAccountant().compose({PROJECTION: 1, FIRST: 3, SECOND: 50}).epsilon(delta=1e-5)
    assert epsilon["pld"] < epsilon["rdp"] < epsilon["moments"]
    assert set(epsilon) | set(priced["no_price"]) == set(ACCOUNTANTS)
    assert (priced["neighbouring"], priced["dataset"]) == ("add or remove one record", "mnist")
    shown = run("price", folder, "--delta", "1e-5").stdout
    assert all(name in shown for name in ACCOUNTANTS)
    assert all(fact in shown for fact in ("1e-05", "add or remove one record", "mnist"))


def test_price_of_a_group_is_larger_and_names_the_relation(folder):
    options = ("price", folder, "--delta", "1e-5", "--accountant", "pld", "--group-size")
    one, three = facts(*options, 1), facts(*options, 3)
    assert three["neighbouring"] == "add or remove a group of 3 records"
    assert three["prices"][0]["epsilon"] > 3 * one["prices"][0]["epsilon"]
    assert "not supported" in run("price", folder, "--delta", "1e-5", "--group-size", 3).stdout


@pytest.mark.parametrize(
    ("event", "times"),
    [
        (FixedSizeGaussian(100, 10_000, 2.0), 30),
        (TruncatedPoissonGaussian(0.01, 4.0, largest_batch=200, most_records=10_000), 300),
        (BallsInBinsGaussian(100, 4.0), 100),
        (BandedGaussian(0.01, 4.0, bands=4), 300),
    ],
    ids=lambda value: getattr(value, "mechanism", ""),
)
def test_a_group_is_counted_record_by_record_where_no_release_is_known_for_it(tmp_path, event, times):
    """P(S) <= e^epsilon Q(S) + delta twice, as each of two records is changed."""
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.charge(event, times)
    (found,) = facts("price", tmp_path, "--delta", "1e-5", "--group-size", 2, "--accountant", "pld")["prices"]
    curve, half = PldAccountant().compose({event: times}), found["epsilon"] / 2
    assert curve.delta(epsilon=half) * (1 + math.exp(half)) == pytest.approx(1e-5, rel=1e-2)
    assert 2 * curve.epsilon(delta=1e-5) < found["epsilon"] < 10
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.charge(event, times)
    priced = facts("price", tmp_path, "--delta", "1e-5", "--group-size", 2, "--accountant", "pld")
    assert "odometer for several" in priced["whatever_was_chosen"] or "Rényi" in priced["whatever_was_chosen"]


def test_releases_for_records_and_for_users_have_a_cost_for_users_alone(tmp_path):
    """The way out that the refusal names is taken: the cost is that of each release for a user's records."""
    with Ledger(tmp_path / "ledger.jsonl", dataset="visits") as ledger:
        ledger.charge(UserLevel(FIRST, 2), 100)
    assert "(--per record)" in run("charge", tmp_path, "--gaussian", 20).stderr
    succeeded(run("charge", tmp_path, "--gaussian", 20, "--per", "record"))
    succeeded(run("charge", tmp_path, "--zcdp", 0.01, "--per", "user"))
    assert "zcdp, epsilon, laplace, discrete_gaussian and gaussian, got none" in run("charge", tmp_path).stderr
    ways = ("101 to add or remove all records", "1 to add or remove one record", "--records-per-user K", "nothing")
    refusal(run("price", tmp_path, "--delta", "1e-5"), *ways)
    priced = facts("price", tmp_path, "--delta", "1e-5", "--records-per-user", 4, "--accountant", "pld")
    of_user = {GroupPrivacy(FIRST, 2): 100, Gaussian(20 / 4): 1, ZcdpAmount(0.01): 1}
    same = {GroupPrivacy(event, 1) if isinstance(event, Gaussian) else event: n for event, n in of_user.items()}
    alone = [PldAccountant().compose({event: times}).epsilon(delta=1e-5) for event, times in same.items()]
    assert max(alone) < priced["prices"][0]["epsilon"] < sum(alone)
    assert priced["neighbouring"] == "add or remove all records of one user who has 4 or fewer"
    (of_one,) = facts("price", tmp_path, "--delta", "1e-5", "--records-per-user", 1, "--accountant", "pld")["prices"]
    assert max(alone[0], alone[2]) < of_one["epsilon"] < priced["prices"][0]["epsilon"]
    assert "not both" in run("price", tmp_path, "--delta", "1e-5", "--records-per-user", 2, "--group-size", 2).stderr
    assert run("price", tmp_path, "--delta", "1e-5", "--records-per-user", 0).exit_code == 2


def test_records_that_are_replaced_say_nothing_to_users(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.charge(FixedSizeGaussian(100, 10_000, 2.0))
        ledger.charge(Gaussian(9.0), other_neighbours=True)
    assert "keep a ledger for each" in run("price", tmp_path, "--delta", "1e-5").stderr
    refused = run("price", tmp_path, "--delta", "1e-5", "--records-per-user", 2)
    assert (refused.exit_code, refused.stderr.count("says nothing to add or remove all records")) == (2, 1)


@pytest.mark.parametrize("name", ["run.json", "checkpoint/settings.json"])
def test_the_delta_of_the_run_is_taken_where_none_is_given(folder, name):
    refusal(run("price", folder), "give --delta, such as")
    (folder / name).parent.mkdir(exist_ok=True)
    told = {"recipe": {"privacy": {"delta": 1e-7}}}
    (folder / name).write_text(sealed(told, {}) if name == "run.json" else json.dumps(told))
    options = ("price", folder, "--accountant", "rdp")
    assert facts(*options) == facts(*options, "--delta", "1e-7")
    assert facts(*options, "--delta", "1e-5")["delta"] == 1e-5


def test_what_is_no_ledger_is_told_apart_from_a_damaged_one(tmp_path):
    (tmp_path / "rows.csv").write_text("age,ill\n3,no\n")
    charge = ["charge", "--gaussian", "2", "--dataset", "a"]
    for command in (["show"], ["price", "--delta", "1e-5"], ["repair"], charge):
        said = "rows.csv is not a ledger; give the folder of a run, or the ledger.jsonl in it"
        refusal(run(*command, tmp_path / "rows.csv"), said)


def test_a_missing_ledger_is_named(tmp_path):
    for command in (["show"], ["price", "--delta", "1e-5"], ["repair"]):
        assert "a device, a pipe or a socket" in run(*command, "/dev/full").stderr
        for place in (tmp_path, tmp_path / "none.jsonl"):
            result = run(*command, place)
            assert (result.exit_code, str(place) in result.stderr) == (2, True)
            assert not list(tmp_path.iterdir())


def test_a_cut_line_is_refused_until_it_is_repaired_by_who_has_the_ledger(folder):
    path = folder / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    commands = ["show", folder], ["price", folder, "--delta", "1e-5", "--accountant", "rdp"]
    lost = "lines are missing; what the run itself cost is in privacy.txt); restore it from a copy"
    (folder / "run.json").write_text(sealed_run := sealed({"private": True, "ledger_head": "of the line cut off"}, {}))
    for command in commands:
        refusal(run(*command), lost)
    (folder / "run.json").unlink()
    for command in commands:
        refusal(run(*command), f"noisette ledger repair {path}")
    repaired = run("repair", folder)
    assert (repaired.exit_code, repaired.stdout) == (0, f"{path}: the last line was cut off and is repaired\n")
    with Ledger(path, dataset="mnist"):
        assert [run(*command).exit_code for command in commands] == [0, 0]
        assert "open for writing elsewhere" in run("repair", folder).stderr
    assert run("repair", folder).stdout == f"{path}: nothing to repair\n"
    (folder / "run.json").write_text(sealed_run)
    refusal(run("repair", folder), lost)


def unfinished(folder: Path, number: int = 1, *, checkpoint: bool = True) -> Path:
    """What a killed ``noisette train --out RUN`` leaves."""
    place = folder / f"run.unfinished-{number}"
    place.mkdir()
    with Ledger(place / "ledger.jsonl", dataset="mnist") as ledger:
        ledger.reserve(FIRST, 16)
    if checkpoint:
        (place / "checkpoint").mkdir()
        (place / "checkpoint" / "checkpoint.safetensors").write_text("{}")
    return place


@pytest.mark.parametrize("name", ["run/ledger.jsonl", "run.unfinished-1"])
def test_the_ledger_of_a_run_that_was_cut_off_is_found_by_its_name(tmp_path, monkeypatch, name):
    place = unfinished(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in (["show"], ["price", "--delta", "1e-5", "--accountant", "rdp"]):
        result = succeeded(run(*command, name, "--json"))
        assert Path(json.loads(result.stdout)["ledger"]).resolve() == place / "ledger.jsonl"
        if name != "run.unfinished-1":
            assert f"The ledger is {place}/ledger.jsonl" in result.stderr
            assert f"To continue it: noisette train --resume {place}" in result.stderr
    assert "nothing to repair" in run("repair", name).stdout


def test_a_finished_run_goes_before_one_that_was_cut_off_and_both_are_named(folder):
    (folder / "run").mkdir()
    (folder / "ledger.jsonl").rename(folder / "run" / "ledger.jsonl")
    place, result = unfinished(folder, checkpoint=False), run("show", folder / "run", "--json")
    assert json.loads(result.stdout)["mechanisms"][0]["charged"] == 1
    assert f"The ledger is {folder}/run/ledger.jsonl" in result.stderr
    assert f"{place} was cut off before its first checkpoint" in result.stderr


def test_several_runs_that_were_cut_off_are_named_and_none_is_taken(tmp_path):
    places = [unfinished(tmp_path, number) for number in (1, 2)]
    refusal(noisette("audit", tmp_path / "run"), f"noisette train --resume {places[0]}")
    refusal(run("show", tmp_path / "run"), *map(str, places))
    succeeded(run("show", places[1]))
    assert "name one of" in run("charge", tmp_path / "run", "--gaussian", "2", "--dataset", "mnist").stderr
    assert not (tmp_path / "run").exists()


def test_price_of_several_declarations_tells_both_numbers(folder):
    priced = facts("price", folder, "--delta", "1e-5")
    adaptive = RenyiOdometer().compose(Ledger.read(folder / "ledger.jsonl").events).epsilon(delta=1e-5)
    assert (priced["declarations"], priced["whatever_was_chosen"]) == (3, adaptive)
    assert adaptive > max(row["epsilon"] for row in priced["prices"] if row["accountant"] in ("pld", "rdp"))
    shown = run("price", folder, "--delta", "1e-5").stdout
    assert f"rdp-odometer {rounded_up(adaptive)}" in " ".join(shown.split())
    assert "3; the accountants take them as declared together" in shown


def test_price_of_one_declaration_is_one_number_and_of_several_without_divergences_there_is_no_other(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.charge(PROJECTION, declaration="all")
        ledger.charge(FIRST, 9, declaration="all")
    priced = facts("price", tmp_path, "--delta", "1e-5")
    assert (priced["declarations"], priced["whatever_was_chosen"]) == (1, None)
    assert "odometer" not in run("price", tmp_path, "--delta", "1e-5").stdout
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.charge(DpAmount(0.1, 1e-9, tool="a survey"))
    assert "Declare everything together" in facts("price", tmp_path, "--delta", "1e-5")["whatever_was_chosen"]
    shown = " ".join(run("price", tmp_path, "--delta", "1e-5").stdout.split())
    assert "rdp-odometer not supported" in shown
    assert "odometer DpAmount(epsilon=0.1, delta=1e-09" in shown
