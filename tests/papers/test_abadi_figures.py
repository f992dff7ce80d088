from __future__ import annotations

import pytest

from finished_runs import write as write_runs
from papers import summary
from papers.abadi_2016 import figure_3, figure_4, figure_5, panels, table_summary
from papers.abadi_2016.figures import PAPER
from papers.abadi_2016.mnist import Mnist
from papers.abadi_2016.runs import Run, read
from papers.section import Section


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    plans = figure_4.plans([0, 1, 2], full=False) + figure_5.plans([0], full=False)
    return read(write_runs(plans, tmp_path_factory.mktemp("runs")))


def column(section: Section, name: str) -> list[str]:
    return [row[section.header.index(name)] for row in section.rows]


def test_the_first_table_has_every_printed_number_of_figures_2_to_6(runs: list[Run]) -> None:
    assert next(iter(PAPER.parts)) == summary.NAME
    section = table_summary.section(runs)
    assert [row[0] for row in section.rows if row[0]] == [f"figure {k}" for k in range(2, 7)]
    printed = ["9.34", "24.22", "1.26", "2.55", "90.0 %", "95.0 %", "97.0 %", "90.0 %", "67.0 %", "70.0 %", "73.0 %"]
    assert [cell for cell in column(section, "paper") if cell[0].isdigit()] == printed
    assert column(section, "ours")[-3:] == ["not run"] * 3
    assert column(section, "seeds")[4:7] == ["3"] * 3
    assert all(row[-1] for row in section.rows[4:])


def test_an_accuracy_is_never_shown_below_its_epsilon() -> None:
    """One run of one step with a known epsilon: nothing is shown below it, the accuracy at every epsilon above."""
    setting = figure_3.PANELS[1].setting
    runs = [Run(setting, 0, 1, 1.0, ((1, 0.5),))]
    cost = setting.compose(1, panels.MOMENTS).epsilon(delta=1e-5)
    assert 0.5 < cost < 1
    row = next(row for row in figure_4.section(runs).rows if row[:2] == ("1e-5", "ours, moments accountant"))
    assert row[2:] == ("", "", *["50.0 %"] * 4)


def test_figure_5_uses_no_accuracy_beyond_the_budget() -> None:
    setting = Mnist()
    steps = figure_5.plans([0], full=False)[0].steps
    runs = [Run(setting, 0, 2 * steps, 1.0, ((steps, 0.9), (steps + 1, 0.99)))]
    assert set(column(figure_5.section(runs), "ours")) == {"90.0 % (1 seed)"}
