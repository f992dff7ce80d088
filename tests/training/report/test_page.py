import json
import re
from dataclasses import MISSING, fields, replace
from html import unescape

from torch import nn

from finished_runs import with_recipe
from noisette.accounting import DpAmount, PoissonGaussian, UserLevel
from noisette.accounting.events import facts_of as event_facts
from noisette.training.report.facts import Facts
from noisette.training.report.page import documents, page
from noisette.training.report.statement import settings, statement


def text_of(html: str) -> str:
    """What a reader sees, with single spaces."""
    return " ".join(unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


REQUIRED = [each.name for each in fields(Facts) if each.default is MISSING and each.default_factory is MISSING]


def test_it_needs_nothing_but_itself(facts):
    html = page(facts)
    assert not re.findall("<(script|link|iframe|img|object|base)", html)
    assert not re.findall(r'\s(?:src|href|xlink:href|data|action|srcset)="(?!#)', html)
    assert "@import" not in html
    assert "url(http" not in html
    assert html.count("<svg") == 2
    assert "prefers-color-scheme: dark" in html


def test_it_shows_result_settings_and_the_whole_statement(facts):
    text = text_of(page(facts))
    assert "93.1 % test accuracy with differential privacy at ε = 2.76, δ = 1e-4" in text
    for setting in ("lr 1.25", "max grad norm 1.5", "batch size 216", "cosine false", "example 1 × 8 × 8 numbers"):
        assert setting in text
    assert {"mean", "frozen", "tokens"}.isdisjoint(dict(settings(facts)["Data"]) | dict(settings(facts)["Model"]))
    assert all(
        said in text for said in ("What the guarantee means", "with at most 0.1 %, at most", "one record took part")
    )
    for heading, paragraphs in statement(facts).items():
        assert all(said in text for said in (heading, *paragraphs))


def test_names_from_outside_are_text_not_markup(facts):
    named = replace(facts, data="<script>x</script>", note="<b>partial</b>")
    html = page(with_recipe(named, model={"name": "<img src=//evil>"}))
    assert not re.findall("<(script|img|b>partial)", html)
    assert "<b>partial</b>" in text_of(html)


def test_a_run_without_test_examples_or_points_has_a_page(facts):
    text = text_of(page(replace(facts, test=None, points=())))
    assert "A model with differential privacy at" in text
    assert "The course of the run" not in text


def test_a_run_without_privacy_says_so_in_every_title_and_names_no_epsilon(facts):
    given = {field.name: getattr(facts, field.name) for field in fields(facts)}
    plain = Facts(**{name: given[name] for name in (*REQUIRED, "test")} | {"points": ()})
    assert not plain.private
    html, files = page(plain), documents(plain, nn.Linear(2, 2))
    assert "<title>NOT PRIVATE: flowers" in html
    assert "NOT PRIVATE: 93.1 % test accuracy" in text_of(html)
    assert files.keys() == {"model.safetensors", "report.html", "run.json"}
    assert json.loads(files["run.json"])["private"] is False
    for text in (html, files["run.json"].decode()):
        assert not re.search("ε|epsilon|delta|noise multiplier", text.split("</style>")[-1], re.IGNORECASE)
    assert b"NOT PRIVATE" in files["model.safetensors"]
    assert json.loads(facts.as_json())["private"] is True


def test_an_unsafe_switch_is_named_at_the_top(facts):
    text = text_of(page(with_recipe(facts, privacy={"allow_large_delta": True})))
    assert text.index("Unsafe switch: allow_large_delta") < text.index("Settings")


def test_a_model_of_words_is_described(facts):
    text = text_of(page(replace(facts, input_shape=(20,), words=2447, classes=4, test=None)))
    assert "example 20 words, 4 classes" in text
    assert "a single word of it has no guarantee of its own" in text


def right_answers(facts: Facts) -> float:
    return float(text_of(page(facts)).split("is right at most")[1].split("%")[0])


def test_attacks_see_everything_that_the_ledger_counts(facts):
    other = (event_facts(DpAmount(1.0)), 1)
    assert right_answers(replace(facts, released=(*facts.released, other))) > right_answers(facts) + 5


def test_attacks_on_users_reach_more_than_on_records(facts):
    event = event_facts(UserLevel(PoissonGaussian(0.15, 3.2), 3))
    of_users = replace(facts, event=event, released=((event, 240),), points=())
    assert right_answers(of_users) > right_answers(facts) + 5
    text = text_of(page(of_users))
    assert "No single user can make any outcome" in text
    assert "whether one user took part" in text
    assert "1 % of the users that took no part" in text
