"""Figures and tables of training without clipping, made from invented runs."""

from __future__ import annotations

from noisette.data import names
from noisette.nn import models
from papers.bethune_2024 import figure_pareto, figure_robustness, table_best, table_summary, table_tabular
from papers.bethune_2024.adbench import ANOMALIES, PREFIX
from papers.bethune_2024.parts import PAPER
from papers.bethune_2024.runs import Cell, Run, median_of
from papers.bethune_2024.setting import Setting
from papers.paper import Asked
from papers.section import Section


def finished(setting: Setting, reached: float = 0.9, seed: int = 0, certified: tuple[float, ...] = ()) -> Run:
    return Run(setting, seed, 1.0, 100, setting.epsilon, 2.0, reached, certified)


def setting(row: str, epsilon: float) -> Setting:
    [found] = [row_.whole(epsilon) for row_ in figure_pareto.GRID.rows if row_.name == row]
    assert found is not None
    return found


def lines_of(section: Section, name: str) -> list[tuple[str, ...]]:
    start = next(k for k, row in enumerate(section.rows) if row[0] == name)
    end = next((k for k in range(start + 1, len(section.rows)) if section.rows[k][0]), len(section.rows))
    return list(section.rows[start:end])


def test_the_median_of_the_seeds_is_shown_with_their_range() -> None:
    mnist = setting("mnist-pixels", 3.0)
    runs = [finished(mnist, reached, seed) for seed, reached in enumerate((0.951, 0.97, 0.953))]
    assert str(median_of(runs, mnist)) == "95.3 (95.1 to 97.0)"
    assert str(median_of(runs[:1], mnist)) == "95.1 (1 seed)"
    assert median_of(runs, setting("mnist-pixels", 1.0)) is None
    again = [*runs, finished(mnist, 0.98, seed=2)]
    assert str(median_of(again, mnist)) == "97.0 (95.1 to 98.0)", "a seed that was run again counts once"


def test_the_best_of_a_search_is_shown_once_all_of_its_settings_have_run() -> None:
    ours = table_tabular.GRID.rows[0].whole("DP-SGD")
    assert ours
    searched = table_best.settings(ours)
    assert len(set(searched)) == table_best.TRIALS
    assert {(s.epsilon, s.delta, s.data, s.lot) for s in searched} == {(ours.epsilon, ours.delta, ours.data, ours.lot)}
    runs = [finished(setting, 0.5 + k / 1000) for k, setting in enumerate(searched)]
    *_, best = lines_of(table_best.section(runs), "aloi")
    last = 50 + (table_best.TRIALS - 1) / 10
    assert best[2:] == (f"{last:.1f} ({(50 + last) / 2:.1f}, 50.0)", "not run")
    *_, best = lines_of(table_best.section(runs[1:]), "aloi")
    assert best[2:] == ("not run", "not run")
    [shown] = [row for row in table_summary.section(runs).rows if row[1].startswith("aloi") and row[4] == "1 each"]
    assert shown[3] == f"{last:.1f}"


def test_certified_accuracies_belong_to_their_radii() -> None:
    at = figure_robustness.GRID.rows[0].whole(16)
    assert at is not None
    setting, radius = at
    assert radius == 16 / 255
    shares = tuple(0.9 - 0.1 * place for place in range(len(setting.radii)))
    section = figure_robustness.section([finished(setting, certified=shares)])
    [line] = lines_of(section, "mnist-tau-60")
    assert line[1:] == ("ours", "90.0", "80.0", "70.0", "60.0", "50.0", "40.0", "30.0", "20.0")
    paper, _ = lines_of(section, "cifar10-tau-1.35")
    assert paper[2:] == ("38.4", "36.4", "34.7", "30.9", "24.1", "13.0", "", "")


def test_every_setting_is_a_recipe_of_known_sets_and_models() -> None:
    for part in PAPER.parts.values():
        for job in part.missing(Asked((0,), full=True), []):
            assert isinstance(job, Cell)
            recipe = job.setting.recipe(seed=4)
            assert set(job.sets) <= {*names(), *(f"{PREFIX}{name}" for name in ANOMALIES)}
            assert recipe.training.seed == 4
            assert recipe.lipschitz.used == (job.setting.tau is not None)
            assert recipe.model.standardised == (job.setting.public is not None)
            assert recipe.privacy.epsilon == job.setting.epsilon
            assert job.setting.model in models.names() or "networks:" in job.setting.model
