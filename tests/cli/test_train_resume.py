"""``noisette train --resume``: runs that were killed, put off or cut short go on, within their budget."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import dp_accounting
import pytest
from click.testing import Result
from dp_accounting.pld import PLDAccountant

from command_line import FILES, after_step, facts, noisette, refusal, succeeded, train, tree

STEPS, EPSILON, DELTA = 400, 2.0, 2e-4
OPTIONS = ["--model", "linear", "--epochs", 100.2, "--epsilon", EPSILON, "--delta", DELTA, "--out", "run"]
QUICK = ["quick.toml", *OPTIONS, "--batch-size", 360]  # to price


# Runs the command in one forked child after the other. Every child counts its calls of the mechanism in a file of the
# driver's own, one byte each before the noise is drawn, and dies as its plan says: before or after the so-manieth call
# of a function, or after some time.
DRIVER = """
import glob, importlib, json, os, signal, sys, warnings
warnings.simplefilter("ignore")
import torch
torch.set_num_threads(1)
import noisette.cli.train, noisette.training.loop, noisette.training.report, noisette.data
import matplotlib.figure, sklearn.datasets, torch._dynamo  # once, not in every child
from noisette.cli import main
from noisette.core.release import GaussianRelease

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def count_calls():
    whole, file = GaussianRelease.__call__, os.open("calls", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    def call(self, *args, **kwargs):
        os.write(file, b"c")
        return whole(self, *args, **kwargs)
    GaussianRelease.__call__ = call

def die_at(where, name, number):
    module, _, path = name.partition(":")
    owner = importlib.import_module(module)
    *owners, attribute = path.split(".")
    for part in owners:
        owner = getattr(owner, part)
    whole, calls = getattr(owner, attribute), 0
    def call(*args, **kwargs):
        nonlocal calls
        calls += 1
        if where == "before" and calls == number:
            die()
        result = whole(*args, **kwargs)
        if where == "after" and calls == number:
            die()
        return result
    setattr(owner, attribute, call)

def plan(where, *when):
    if where == "time":
        signal.signal(signal.SIGALRM, die)
        signal.setitimer(signal.ITIMER_REAL, *when)
    elif where != "whole":
        die_at(where, *when)

statuses, (begin, *kills) = [], json.loads(sys.argv[1])
for number, kill in enumerate(kills):
    if os.path.isdir("run"):
        break
    resume = bool(glob.glob("run.unfinished-*/checkpoint/checkpoint.safetensors"))
    child = os.fork()
    if child == 0:
        sys.argv = ["noisette", "train", *(["--resume", "run"] if resume else begin)]
        plan(*kill)
        count_calls()
        main()
    statuses.append([resume, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])])
print(json.dumps(statuses))
"""

# Everywhere that something is written or drawn, and between.
OF_LEDGER = ("ledger:Ledger.reserve", "ledger:Ledger.commit", "ledger:Ledger.release", "ledger_file:LedgerFile._sync")
OF_STEP = ("batches:PoissonSampler.indices", "release:GaussianRelease.__call__", "noise:GaussianNoise.add_")
POINTS = [*(f"noisette.accounting.{point}" for point in OF_LEDGER), *(f"noisette.core.{point}" for point in OF_STEP)]
POINTS += [f"noisette.run.checkpoint:{name}" for name in ("Fingerprint.write", "save_file", "write")]
POINTS += ["noisette.run.per_example:PerExampleClip.add", "noisette.accounting.atomic_files:sync"]
POINTS += ["torch.optim:SGD.step", "os:replace", "shutil:rmtree"]


def drive(folder: Path, kills: Sequence[Sequence[object]]) -> list[tuple[bool, int]]:
    """Begin a run, kill it and go on with it, as often as said or until it is whole; whether each process went on with
    a run, and how it ended."""
    folder.mkdir(exist_ok=True)
    (folder / "quick.toml").write_text('[privacy]\naccountant = "rdp"\n')
    plan = json.dumps([list(map(str, QUICK)), *kills])
    done = subprocess.run([sys.executable, "-c", DRIVER, plan], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [(resumed, status) for resumed, status in json.loads(done.stdout.splitlines()[-1])]


def reserved(ledger: Path) -> int:
    signs = {"reserve": 1, "release": -1, "commit": 0}
    return sum(signs[line["kind"]] * line["steps"] for line in map(json.loads, ledger.read_text().splitlines()))


def check_spending(folder: Path) -> None:
    """What happened, counted outside, is paid for; what is paid for is within the plan and the budget."""
    calls = (folder / "calls").stat().st_size if (folder / "calls").exists() else 0
    begun = [*folder.glob("run/ledger.jsonl"), *folder.glob("run.unfinished-*/checkpoint/../ledger.jsonl")]
    ledgers = [ledger for ledger in begun if reserved(ledger)]
    assert len(ledgers) <= 1, "a run that spent something is the one that is gone on with"
    paid = reserved(ledgers[0]) if ledgers else 0
    assert calls <= paid <= STEPS
    if paid:
        line = json.loads(ledgers[0].read_text().splitlines()[0])
        noise = dp_accounting.GaussianDpEvent(line["noise_multiplier"])
        price = PLDAccountant().compose(dp_accounting.PoissonSampledDpEvent(line["sampling_rate"], noise), paid)
        assert price.get_epsilon(DELTA) <= EPSILON * 1.001


def check_whole(folder: Path) -> None:
    assert tree(folder / "run") == FILES
    run = facts(folder / "run")
    assert run["steps_taken"] + run["steps_lost"] == run["steps_planned"] == run["steps"] == STEPS
    assert run["epsilon"] <= EPSILON
    assert run["points"][-1]["test_accuracy"] == run["test_accuracy"]
    steps = [point["step"] for point in run["points"]]
    assert (steps, steps[-1]) == (sorted(set(steps)), STEPS)


def test_a_killed_run_goes_on_and_stays_within_its_budget(tmp_path):
    kills = [
        ("after", "noisette.accounting.ledger:Ledger.reserve", 1),
        ("before", "noisette.accounting.ledger:Ledger.commit", 5),
        ("after", "noisette.core.noise:GaussianNoise.add_", 9),
        ("before", "os:replace", 10),
        ("whole",),
    ]
    assert drive(tmp_path, kills) == [(False, -9), (True, -9), (True, -9), (True, -9), (True, 0)]
    check_spending(tmp_path)
    check_whole(tmp_path)
    assert tree(tmp_path) - {"calls", "quick.toml"} == {"run", *(f"run/{name}" for name in FILES)}
    run = facts(tmp_path / "run")
    assert run["resumed"] == 4
    assert 3 * STEPS // 20 < run["steps_lost"] <= 5 * STEPS // 20
    text = (tmp_path / "run" / "privacy.txt").read_text().replace("\n", " ")
    assert f"{run['steps_lost']} steps were lost when a process ended early: " in text
    assert (
        f"{run['steps_taken']} of {STEPS} (resumed, {run['steps_lost']} lost)"
        in (tmp_path / "run" / "report.html").read_text()
    )


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_named_point(point, tmp_path):
    kills = [(where, point, number) for number in (1, 3, 8) for where in ("before", "after")]
    statuses = drive(tmp_path, [*kills, ("whole",), ("whole",)])
    check_spending(tmp_path)
    assert statuses[0] == (False, -9)
    assert statuses[-1][1] == 0 or point == "shutil:rmtree", "what is removed last is no part of the run"
    check_whole(tmp_path)


@pytest.mark.slow
def test_killed_at_two_hundred_random_instants(tmp_path):
    """Runs of up to ten lives each; the clock is the only thing that is random here."""
    lives = 0
    for number in range(25):
        folder = tmp_path / str(number)
        statuses = drive(folder, [("time", 0.15 + 0.13 * ((7 * number + k) % 17)) for k in range(9)] + [("whole",)])
        lives += len(statuses)
        check_spending(folder)
        if (folder / "run").exists():
            check_whole(folder)
    assert lives >= 200


def press(number: signal.Signals, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    after_step(step, lambda: signal.raise_signal(number), monkeypatch)


def put_off(step: int, monkeypatch: pytest.MonkeyPatch, number: signal.Signals = signal.SIGTERM) -> Result:
    with monkeypatch.context() as pressed:
        press(number, step, pressed)
        return train(*OPTIONS)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_the_run_at_the_step_at_hand_and_loses_nothing(number, code, tmp_path, monkeypatch):
    before, shown = signal.getsignal(number), put_off(39, monkeypatch, number)
    assert shown.exit_code == code, shown.output
    assert f"noisette train --resume {tmp_path}/run.unfinished-1" in shown.output
    assert reserved(tmp_path / "run.unfinished-1" / "ledger.jsonl") == 40
    assert signal.getsignal(number) is before
    for place in ("run", "run.unfinished-1"):
        refusal(noisette("predict", place, tmp_path), "To continue it: noisette train --resume ", "run.unfinished-1")
    shown = succeeded(train("--resume", "run.unfinished-1"))
    check_whole(tmp_path)
    run = facts(tmp_path / "run")
    assert (run["steps_taken"], run["steps_lost"], run["resumed"]) == (STEPS, 0, 1)
    assert f"{STEPS} of {STEPS} (resumed, 0 lost)" in shown.output


def test_a_second_ctrl_c_ends_at_once_and_the_last_checkpoint_goes_on(tmp_path, monkeypatch):
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as pressed:
        after_step(50, twice, pressed)
        shown = train(*OPTIONS)
    assert shown.exit_code == 130, shown.output
    succeeded(train("--resume", "run"))
    check_whole(tmp_path)


def test_a_failure_leaves_what_can_be_gone_on_with_from_any_folder(tmp_path, monkeypatch):
    """Data, settings and all; only the error that ended the run is gone."""
    (tmp_path / "people.csv").write_text(
        "x,y,label\n" + "".join(f"{i % 7},{i % 5},{['no', 'yes'][i % 2]}\n" for i in range(60))
    )
    (tmp_path / "recipe.toml").write_text(
        '[data]\nname = "people.csv"\nclasses = ["no", "yes"]\nsize = 60\n[data.columns]\n'
        'x = {kind = "number", low = 0, high = 6}\ny = {kind = "number", low = 0, high = 4}\n'
        '[model]\nname = "mlp"\n[privacy]\ndelta = 1e-3\n[training]\nepochs = 10\nbatch_size = 20\naveraging = 0.9\n'
    )

    def unplug() -> None:
        raise OSError("unplugged")

    with monkeypatch.context() as broken:
        after_step(7, unplug, broken)
        refusal(train("recipe.toml", "--out", "run"), "unplugged")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    succeeded(train("--resume", tmp_path / "run"))
    run = facts(tmp_path / "run")
    assert (run["data"], run["resumed"], run["steps_taken"] + run["steps_lost"]) == ("people.csv", 1, 30)
    assert run["test_accuracy"] is None


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """The folder of a run that was put off after five steps, made where no umask hides anything."""
    folder, before = tmp_path_factory.mktemp("begun"), os.umask(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        put_off(5, patch)
    os.umask(before)
    return folder / "run.unfinished-1"


def test_what_was_put_off_is_mentioned_when_a_run_begins_at_its_place(begun, tmp_path, monkeypatch):
    shutil.copytree(begun, tmp_path / begun.name)
    shown = put_off(5, monkeypatch)
    assert f"To continue it: noisette train --resume {tmp_path}/run.unfinished-1" in shown.output
    assert "another run, whose ledger does not count it" in shown.output
    refusal(train("--resume", "run"), "several unfinished runs", "run.unfinished-1", "run.unfinished-2")


FORGED = {
    "lack holdout_key, recipe": {"recipe": "x", "holdout_key": 5},
    "epsilon: 2.0 in the checkpoint, 99.0 now": {"recipe": {"privacy": {"epsilon": 99.0, "delta": DELTA}}},
}


@pytest.mark.parametrize("said", FORGED)
def test_settings_that_are_not_those_of_the_checkpoint(said, begun, tmp_path):
    place = shutil.copytree(begun, tmp_path / begun.name) / "checkpoint" / "settings.json"
    place.write_text(json.dumps(json.loads(place.read_text()) | FORGED[said]))
    refusal(train("--resume", "run"), said)


def test_no_other_option_goes_with_it(tmp_path, monkeypatch):
    (tmp_path / "recipe.toml").write_text("")
    given = ("--resume", "run", "recipe.toml", "--lr", 3, "--epsilon", 9, "--allow-large-delta")
    refusal(train(*given), "leave out recipe, --epsilon, --allow-large-delta, --lr")


def test_a_run_that_still_goes_on_is_left_alone(tmp_path, monkeypatch):
    messages: list[str] = []
    after_step(5, lambda: messages.append(train("--resume", "run").output), monkeypatch)
    succeeded(train(*OPTIONS, "--epochs", 2))
    assert "is open for writing elsewhere" in messages[0]
    assert tree(tmp_path / "run") == FILES


def test_the_projection_is_bought_once(tmp_path, monkeypatch):
    (tmp_path / "recipe.toml").write_text(
        '[model]\nname = "mlp"\n[projection]\ncomponents = 8\nnoise_multiplier = 20.0\n[privacy]\nepsilon = 2.0\n'
        "delta = 1e-4\n[training]\nepochs = 4\nbatch_size = 200\n"
    )
    with monkeypatch.context() as pressed:
        press(signal.SIGTERM, 9, pressed)
        assert train("recipe.toml", "--out", "run").exit_code == 143
    succeeded(train("--resume", "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines].count("charge") == 1
    run = facts(tmp_path / "run")
    assert (run["recipe"]["projection"]["components"], run["steps_taken"], run["resumed"]) == (8, 29, 1)
    assert 1.9 < run["epsilon"] <= 2
    assert run["test_accuracy"] > 0.15  # chance is 0.1, and the noise large
