"""The command that reproduces papers, and the parts that they have in common."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result
from typer.testing import CliRunner

from command_line import refusal, succeeded
from finished_runs import write
from papers import summary
from papers.__main__ import app
from papers.abadi_2016 import figure_3, panels, runs
from papers.abadi_2016.figures import PAPER as ABADI
from papers.bethune_2024.parts import PAPER as BETHUNE
from papers.davody_2020.parts import PAPER as DAVODY
from papers.davody_2020.setting import NoisyWeights
from papers.lee_kifer_2020.parts import PAPER as LEE_KIFER
from papers.paper import Asked, Paper, Tell


def reproduce(*arguments: str, out: Path, paper: str = "abadi-2016") -> Result:
    return CliRunner().invoke(app, [paper, *arguments, "--out", str(out)])


def test_figure_2_needs_no_training_and_the_run_times_of_the_others_are_listed(tmp_path):
    done = succeeded(reproduce(out=tmp_path / "a" / "b"))
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == {"figure-2.svg", "abadi-2016.html"}
    for said in ("9.34", "24.22", "24.21", "1.26", "2.55", *(f"--figure {k}" for k in (3, 4, 5, 6)), "min"):
        assert said in done.output


def test_only_missing_runs_are_made(tmp_path, monkeypatch):
    finished, made = write(panels.plans(figure_3.PANELS, [0, 1, 2]), tmp_path).parent, []
    monkeypatch.setattr("noisette.data.load", lambda name, data_dir: "images")
    monkeypatch.setattr(runs, "make", lambda plan, data, path, tell: made.append(plan.seed))
    for seeds, expected in (("0,1,2", []), ("2,3", [3, 3, 3])):
        done = reproduce("--figure", "3", "--seeds", seeds, out=finished)
        assert (done.exit_code, made) == (0, expected), done.output
        page = (finished / "abadi-2016.html").read_text()
        assert seeds == "2,3" or ("90.0 %" in page and "3 seeds" in page)


WRONG_FOR_ABADI = [
    (["--figure", "1"], "no figure 1; there are 2, 3, 4, 5, 6"),
    (["--seeds", "a,1", "--figure", "3"], "--seeds as whole numbers, such as 0,1,2, got 'a,1'"),
    (["--figure", "6"], "give their file with --weights"),
    (["--figure", "3", "--weights", __file__], "for parts that start from public weights: add --figure 6"),
    (["--table", "2", "--figure", "3"], "give --figure or --table, not both"),
]
WRONG_FOR_DAVODY = [
    (["--table", "2", "--rows", "lenet-5,lenet-7"], "no row lenet-7; there are lenet-300-100, bn-lenet-300-100"),
    (["--table", "2", "--full"], "add --table 3 or --table 5 or --figure norms"),
    (["--table", "6", "--weights", __file__], "fits one network: add --rows with one of tf-tutorial"),
]


@pytest.mark.parametrize(
    ("paper", "arguments", "message"),
    [*(("abadi-2016", *case) for case in WRONG_FOR_ABADI), *(("davody-2020", *case) for case in WRONG_FOR_DAVODY)],
)
def test_bad_input_writes_nothing(paper, arguments, message, tmp_path):
    refusal(reproduce(*arguments, out=tmp_path / "out", paper=paper), message)
    assert not (tmp_path / "out").exists()


def test_missing_cells_of_a_table_are_run_and_shown_with_the_printed_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("noisette.data.load", lambda name, data_dir: name)
    trained: list[tuple[str, float, int]] = []

    def trains(setting: NoisyWeights, seed: int, data: object, tell: Tell) -> dict[str, object]:
        tell(1.0, 0.5)
        trained.append((setting.model, setting.sigma, seed))
        return {"test_accuracy": 0.9876, "points": [[1, 0.5]], "seconds": 1.0}

    monkeypatch.setattr("papers.davody_2020.weight_noise.train", trains)
    asked = ("--table", "2", "--rows", "bn-lenet-5,lenet-5", "--seeds", "0,1")
    for words, number in ((asked, 20), (asked, 20), (("--figure", "1"), 25)):
        done = reproduce(*words, out=tmp_path, paper="davody-2020")
        assert (done.exit_code, len(trained)) == (0, number), done.output
    page = (tmp_path / "davody-2020.html").read_text()
    for said in ("98.76 ± 0.00 (2 seeds)", "99.25 ± 0.07", 'id="table-2"', 'id="figure-1"'):
        assert said in page
    assert {file.name for file in tmp_path.iterdir()} == {"davody-2020.html", "figure-1.svg", "runs.jsonl"}


PAPERS: list[Paper[Any]] = [ABADI, DAVODY, LEE_KIFER, BETHUNE]


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_what_was_not_run_is_said_and_drawn_without(paper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert next(iter(paper.parts)) == summary.NAME
    for name, part in paper.parts.items():
        section = part.section([])
        assert all(len(row) == len(section.header) for row in section.rows)
        assert (paper is ABADI and name != "figure-3") or "not run" in {cell for row in section.rows for cell in row}
        if section.figure:
            ElementTree.fromstring(section.figure)


@pytest.mark.parametrize("paper", PAPERS, ids=lambda paper: paper.name)
def test_a_default_command_takes_an_hour_or_so_for_each_seed(paper):
    for part in paper.parts.values():
        jobs = part.missing(Asked(part.seeds, weights="w" if "weights" in part.options else None), [])
        assert sum(job.seconds for job in jobs) / max(1, len(part.seeds)) < 2 * 3600
