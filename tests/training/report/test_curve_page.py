import json
from dataclasses import replace

import pytest

from noisette.training.report.facts import NumberFigures
from noisette.training.report.page import documents_of_curve as documents


@pytest.fixture
def plain(facts):
    """The same run without privacy."""
    return replace(facts, event={}, released=(), epsilon=float("inf"))


def test_everything_is_called_not_private_where_a_baseline_is_in_it(facts, plain):
    files = documents([facts], plain)
    assert files.keys() == {"curve.html", "curve.json", "curve.svg", "curve-log-loss.svg"}
    assert "<title>NOT PRIVATE: " in files["curve.html"].decode()
    assert "Do not publish this page" in " ".join(files["curve.html"].decode().split())
    assert all("<title>NOT PRIVATE: " in files[name].decode() for name in ("curve.svg", "curve-log-loss.svg"))
    assert not json.loads(files["curve.json"])["private"]
    assert all(b"NOT PRIVATE" not in content for content in documents([facts], None).values())


def test_a_figure_says_to_screen_readers_where_line_and_baseline_run(facts, plain):
    other = replace(facts, epsilon=8.0, test=replace(facts.test, accuracy=0.95))  # type: ignore[type-var]
    drawn = documents([facts, other], plain)["curve.svg"].decode()
    assert 'role="img"' in drawn
    assert "to 0.95 at 8; dashed, without privacy: 0.931</desc>" in drawn


def test_numbers_are_compared_by_their_error(facts):
    recipe = replace(facts.recipe, data=replace(facts.recipe.data, target=(0.0, 9.0), unit="EUR", holdout=0.2))
    told = documents([replace(facts, recipe=recipe, test=NumberFigures(2.5, 2.0, 3.0, 2.5, "EUR"))], None)
    assert "curve-log-loss.svg" not in told
    assert json.loads(told["curve.json"])["runs"][0]["RMSE"] == 2.5
    assert "choosing among the runs by them, or publishing them, is not covered" in told["curve.html"].decode()
