"""``noisette search`` from the command line: what it leaves and refuses, and what is left of one that is cut off."""

import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from collections import namedtuple
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from command_line import FILES, facts, noisette, refusal, succeeded
from noisette.accounting import Ledger, RepeatAndSelect
from noisette.accounting.repeated_runs import NumberOfRuns
from noisette.training.recipe import Recipe
from noisette.training.search import Search
from noisette.training.search_space import SearchSpace

OVER = "lr=log(0.1,10) max_grad_norm=uniform(0.05,1)"
RECIPE = """
data = {name = "own.npz", classes = 3, size = 400}
model.name = "linear"
privacy = {epsilon = 3.0, delta = 1e-4}
training = {epochs = 1, batch_size = 100}
"""
ON_PUBLIC, ON_HELD_OUT = ("--score-on", "public-set"), ("--score-on", "held-out", "--holdout", "0.25")


def search(*options):
    return noisette("search", *options)


@pytest.fixture(autouse=True)
def own(_here):
    write_own()


def write_own():
    random, arrays = np.random.default_rng(0), {}
    for split, records in (("train", 387), ("test", 100)):
        arrays[f"y_{split}"] = random.integers(0, 3, records)
        arrays[f"x_{split}"] = (random.normal(size=(records, 4)) + arrays[f"y_{split}"][:, None]).astype(np.float32)
    np.savez("own.npz", **arrays)
    Path("own.toml").write_text(RECIPE)


@dataclass
class Finished:
    """A search of four runs: its folder, what it printed, the recipes of its runs, and what lay beside it."""

    out: Path
    output: str
    drawn: list[Recipe]
    beside: set[str]

    @property
    def facts(self):
        return facts(self.out)

    @property
    def told(self):
        """All that the search told in words, with single spaces."""
        texts = (self.output, *((self.out / name).read_text() for name in ("report.html", "privacy.txt")))
        return re.sub(r"\s+", " ", " ".join(texts))


def finished(folder, *options):
    drawn, whole = [], SearchSpace.draw

    def draw(self, recipe, random):
        # As many digits as a number has: none of the report's other numbers can be one of these by chance.
        one = whole(self, recipe, random)
        numbers = {"lr": one.training.lr * (1 + random.random() / 1e6)}
        privacy = replace(one.privacy, max_grad_norm=one.privacy.max_grad_norm * (1 - random.random() / 1e6))
        drawn.append(replace(one, training=replace(one.training, **numbers), privacy=privacy))
        return drawn[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(SearchSpace, "draw", draw)
        patch.setattr(NumberOfRuns, "draw", lambda self, key: 4)
        write_own()
        shown = search("own.toml", "--over", OVER, *options, "--shape", 0, "--out", "out")
    assert shown.exit_code == 0, shown.output
    return Finished(folder / "out", shown.output, drawn, {path.name for path in folder.iterdir()})


@pytest.fixture(scope="module")
def on_public(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("public"), *ON_PUBLIC, "--runs", 2, "--epsilon", 2)


@pytest.fixture(scope="module")
def on_held_out(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("held"), *ON_HELD_OUT, "--runs", 4, "--score-noise", 15)


@pytest.mark.parametrize("score", ["on_public", "on_held_out"])
def test_a_search_leaves_the_folder_of_its_best_run_and_nothing_of_the_others(score, request):
    done = request.getfixturevalue(score)
    files = {path.name: path.read_bytes() for path in done.out.iterdir()}
    assert (files.keys(), done.beside) == (FILES, {"own.npz", "own.toml", "out"})
    best = done.facts["search"]["settings"]
    chosen = [each for each in done.drawn if each.training.lr == best["training.lr"]]
    assert (len(done.drawn), len(chosen)) == (4, 1)
    assert done.facts["recipe"]["privacy"]["max_grad_norm"] == best["privacy.max_grad_norm"]
    assert chosen[0].privacy.max_grad_norm == best["privacy.max_grad_norm"]
    everything = done.output.encode() + b"".join(files.values())

    def is_told(value):
        return re.search(rb"(?<![\d.])" + re.escape(repr(value)).encode() + rb"(?!\d)", everything)

    assert all(map(is_told, best.values()))
    losers = [each for each in done.drawn if each not in chosen]
    assert not [each for each in losers if is_told(each.training.lr) or is_told(each.privacy.max_grad_norm)]


def test_epsilon_of_the_folder_follows_from_the_ledger_without_noisette(on_held_out):
    ledger, run = on_held_out.out / "ledger.jsonl", on_held_out.facts
    (event,) = Ledger.read(ledger).events
    assert isinstance(event, RepeatAndSelect)
    assert [times for _, times in event.run] == [run["steps"], 1]
    epsilon_of = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reprice.py"))["epsilon_of"]
    assert epsilon_of(str(ledger), 1e-4) == pytest.approx(run["epsilon"], rel=0.01)
    assert 2.9 < run["epsilon"] <= 3
    found = re.search(r"rdp\s+([\d.]+)", noisette("ledger", "price", str(on_held_out.out), "--delta", "1e-4").output)
    assert found
    assert float(found[1]) == pytest.approx(run["epsilon"], rel=0.002)  # it sets less of delta aside


def test_the_report_says_what_was_searched_and_what_it_cost(on_public):
    drawn = ("log(0.1, 10)", "uniform(0.05, 1)", "a secret random number: 2 on average", "Releasing all of 2 runs")
    for said in (*drawn, "better than on new examples", "RDP"):
        assert said in on_public.told, said
    assert on_public.facts["search"]["epsilon_of_all"] < on_public.facts["epsilon"] <= 2
    assert on_public.facts["points"] == []


def test_a_noisy_score_is_stated_with_its_noise(on_held_out):
    found = on_held_out.facts["search"]
    assert (found["held_out"], found["score_deviation"]) == (0.25, pytest.approx(15 / 100))
    assert on_held_out.facts["declared_size"] == 300
    assert "standard deviation 15.0 %" in on_held_out.told
    assert "% of the declared number held out" in on_held_out.told
    assert "held out with probability 0.25" in on_held_out.told
    assert "Releasing all" not in on_held_out.told


def test_nothing_in_the_folder_depends_on_the_number_of_runs(monkeypatch):
    kept = []
    for number in (1, 5):
        monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key, number=number: number)
        monkeypatch.setattr(SearchSpace, "draw", lambda self, recipe, random: recipe)
        shown = succeeded(search("own.toml", "--over", OVER, *ON_PUBLIC, "--shape", 0, "--out", "out", "--json"))
        run = facts("out")
        del run["sealed"]
        assert json.loads(shown.stdout) == {"folder": "out", **run}
        for name in ("ledger_head", "test", "test_accuracy"):
            run.pop(name)
        lines = [
            line for line in Path("out/privacy.txt").read_text().splitlines() if not re.search(r"[0-9a-f]{20}", line)
        ]
        kept.append((run, lines, sorted(path.name for path in Path("out").iterdir())))
    assert kept[0] == kept[1]


def test_the_folder_does_not_tell_how_long_the_search_took(monkeypatch):
    whole = Search.run

    def long_ago(self, ledger, on_step):
        found = whole(self, ledger, on_step)
        os.utime(ledger.path, (0, 0))  # as if it had been charged long ago
        return found

    monkeypatch.setattr(Search, "run", long_ago)
    succeeded(search("own.toml", "--over", OVER, *ON_PUBLIC, "--shape", 0, "--out", "out"))
    assert {path.name for path in Path("out").iterdir()} == FILES
    times = [path.stat().st_mtime for path in Path("out").iterdir()]
    assert max(times) - min(times) < 5


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ((*ON_PUBLIC, "--over", "nose=log(1,2) batch_size=int(1,2)"), ["no recipe has this", "set it in the recipe"]),
        ((*ON_PUBLIC, "--over", OVER, "--hold-out", 0.2), ["--holdout can go with --score-on held-out alone"]),
        ((*ON_HELD_OUT, "--over", OVER, "--score-noise", -1, "--shape", -1), ["score_noise > 0", "--shape of at"]),
        ((*ON_PUBLIC, "--over", OVER, "--delta", 0.1), ["one over the declared size"]),
        ((*ON_PUBLIC, "--over", "clipping=choice(flat,adaptive)"), ["change what a run releases"]),
    ],
)
def test_wrong_options_are_refused_in_one_message_and_leave_nothing(options, reasons, tmp_path):
    refusal(search("own.toml", *options, "--out", "out"), *reasons)
    assert {path.name for path in tmp_path.iterdir()} == {"own.npz", "own.toml"}


def test_a_disk_without_room_is_refused_before_anything_is_charged(monkeypatch, tmp_path):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 1000))
    refusal(search("own.toml", "--over", OVER, *ON_PUBLIC, "--shape", 0, "--out", "runs/out"), "Nothing was spent")
    assert {path.name for path in tmp_path.iterdir()} == {"own.npz", "own.toml"}


def test_a_search_that_finds_nothing_says_so_and_leaves_its_ledger(monkeypatch):
    monkeypatch.setattr(NumberOfRuns, "draw", lambda self, key: 0)
    shown = search("own.toml", "--over", OVER, *ON_PUBLIC, "--shape", "inf", "--runs", 1, "--out", "out")
    assert shown.exit_code == 1
    assert "The search found nothing" in shown.output
    assert [str(path) for path in Path().glob("out.unfinished-*/*")] == ["out.unfinished-1/ledger.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_search_that_is_cut_off_leaves_its_ledger_alone_and_is_spent(number, code, tmp_path):
    Path("own.toml").write_text(RECIPE.replace("epochs = 1", "epochs = 2000"))
    program = "import sys; from noisette.cli import main; main()"
    options = ["search", "own.toml", "--over", OVER, *ON_PUBLIC, "--shape", "0", "--runs", "50", "--out", "out"]
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", program, *options], env=os.environ | cache, **pipes)
    ledger = Path("out.unfinished-1/ledger.jsonl")
    while not (ledger.is_file() and ledger.stat().st_size):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(number)
    said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert [path.name for path in ledger.parent.iterdir()] == ["ledger.jsonl"]
    assert not Path("out").exists()
    (event,) = Ledger.read(ledger).events
    assert isinstance(event, RepeatAndSelect)
    assert not re.search(r"run \d", said[1]), "progress is for terminals alone"
    if number != signal.SIGKILL:
        assert "ledger.jsonl" in said[1]
    refusal(noisette("train", "--resume", "out"), "no checkpoint")
