"""The tables and figures of the paper, made from runs that might have been."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from papers.davody_2020 import figure_1, table_2, table_3, table_5
from papers.davody_2020.runs import Run, Setting, mean_of
from papers.paper import Asked
from papers.section import Section


def finished(setting: Setting, seed: int = 0, accuracy: float = 0.9, points: tuple[float, ...] = (0.5, 0.9)) -> Run:
    return Run(setting, seed, 1.0, accuracy, tuple(enumerate(points, 1)), None, 0.8)


def lines_of(section: Section, name: str) -> list[tuple[str, ...]]:
    """The lines of a network in a table."""
    start = next(k for k, row in enumerate(section.rows) if row[0] == name)
    end = next((k for k in range(start + 1, len(section.rows)) if section.rows[k][0]), len(section.rows))
    return list(section.rows[start:end])


def texts(svg: str) -> set[str]:
    return {element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")}


def test_mean_and_standard_error_are_those_of_the_seeds() -> None:
    setting = table_2.setting("lenet-5", 0.0)
    runs = [finished(setting, seed, accuracy) for seed, accuracy in enumerate((0.90, 0.92, 0.97))]
    mean = mean_of([*runs, finished(table_2.setting("lenet-5", 1.0))], setting)
    assert mean is not None
    assert mean.mean == pytest.approx(93.0)
    assert mean.error == pytest.approx(math.sqrt((9 + 1 + 16) / 2) / math.sqrt(3))
    assert str(mean) == "93.00 ± 2.08 (3 seeds)"
    assert str(mean_of(runs[:1], setting)) == "90.00 (1 seed)"
    assert mean_of([], setting) is None


def test_only_the_rows_asked_for_are_run_and_the_expensive_ones_only_if_asked_for() -> None:
    def models(asked: Asked) -> set[str]:
        return {cell.setting.model for cell in table_2.GRID.cells(asked)}

    def couples(asked: Asked) -> bool:
        return any(getattr(cell.setting, "batch_norm", None) == "mixture" for cell in table_5.GRID.cells(asked))

    assert models(Asked((0,), rows=("lenet-5", "bn-lenet-5"))) == {"lenet-5", "bn-lenet-5"}
    assert not couples(Asked((0,)))
    assert couples(Asked((0,), full=True))
    assert couples(Asked((0,), rows=("mixture-bn-lenet-5",)))


def test_table_3_trains_narrow_networks_unless_the_whole_table_is_asked_for() -> None:
    narrow, whole = (table_3.GRID.cells(Asked((0,), full=full)) for full in (False, True))
    assert len(narrow) == 4 * 3
    assert len(whole) == 6 * 5 + 4 * 3
    section = table_3.GRID.section([finished(narrow[0].setting, accuracy=0.4)])
    assert lines_of(section, "vgg-16")[1][2] == "not run"
    assert lines_of(section, "vgg-16-eighth") == [
        ("vgg-16-eighth", "ours", "40.00 (1 seed)", "", "not run", "not run", "")
    ]


def test_figure_1_tells_how_many_times_as_many_epochs_more_noise_takes() -> None:
    slow = tuple(min(0.99, 0.3 + 0.02 * epoch) for epoch in range(1, 81))
    quick = tuple(min(0.99, 0.3 + 0.14 * epoch) for epoch in range(1, 21))
    runs = [finished(figure_1.setting(sigma), points=points) for sigma, points in ((1.0, quick), (10.0, slow))]
    section = figure_1.section(runs)
    rows = {row[0]: row for row in section.rows}
    assert rows["1"][3:] == ("5", "1.0")
    assert rows["10"][3:] == ("35", "7.0")
    assert rows["5"][1] == "not run"
    assert {"σ = 1", "σ = 10"} <= texts(section.figure)
