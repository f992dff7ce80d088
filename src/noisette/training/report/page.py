"""The report of a run as one HTML page, the bounds on attacks that it shows, and the other files of a run folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from markupsafe import Markup

from noisette.accounting.events import event_of
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.interface import TradeOff
from noisette.accounting.registry import ACCOUNTANTS
from noisette.training.finished_run import sealed
from noisette.training.report.facts import ClassFigures, Facts, NumberFigures, percent, power_of_ten, upward
from noisette.training.report.facts import upward_percent as most
from noisette.training.report.figures import as_svg, course_of_run, templates
from noisette.training.report.statement import advice, as_text, set_of_tests, settings, statement

if TYPE_CHECKING:
    from torch import nn

_UNENCODABLE = "backslashreplace"  # the name of a file need not be UTF-8
_PAGES = templates("noisette.training.report")
_LOADING = """\
from pathlib import Path

from noisette.training.saved_model import SavedModel

saved = SavedModel.of_run(Path("."))  # asks for what is not in the folder
model = saved.model  # takes inputs as they were trained on
# new rows: saved.predict(saved.read(Path("rows.csv"))); new images: saved.read_images; or noisette predict
"""


def documents(facts: Facts, model: nn.Module) -> dict[str, bytes]:
    """The files of a run folder other than the ledger: their names and contents."""
    from safetensors.torch import save

    # Tied weights are written once for each of their names, since the format cannot share them.
    weights = {name: value.detach().cpu().clone().contiguous() for name, value in model.state_dict().items()}
    files = {
        "model.safetensors": save(weights, None if facts.private else {"guarantee": "NOT PRIVATE"}),
        "report.html": page(facts).encode(errors=_UNENCODABLE),
    }
    if facts.private:
        title = f"Privacy statement of {facts.model_name} trained on {facts.data}"
        files["privacy.txt"] = as_text(statement(facts), title=title).encode(errors=_UNENCODABLE)
    return files | {"run.json": sealed(json.loads(facts.as_json()), files).encode()}


def page(facts: Facts) -> str:
    """The report as HTML without scripts. It loads nothing, so nobody learns that it is read."""
    return _PAGES.get_template("page.html").render(
        facts=facts,
        headline=_headline(facts),
        problem=facts.test.problem if facts.test else "",
        settings=settings(facts),
        course=[(Markup(as_svg(panel)), caption) for panel, caption in course_of_run(facts)] if facts.private else [],
        test_rows=facts.test.rows(facts.class_names) if facts.test else [],
        test_set=set_of_tests(facts),
        confusion=_confusion(facts),
        attack=_sentence(_attack(facts), facts.unit) if facts.private else "",
        advice=advice(facts.search, facts.epsilon) if facts.search else "",
        sections=statement(facts).items() if facts.private else (),
        loading=_LOADING,
        upward=upward,
        power_of_ten=power_of_ten,
    )


def _headline(facts: Facts) -> str:
    """The test result in a few words; accuracy says little of two classes of which one is rare."""
    test = facts.test
    if isinstance(test, NumberFigures):
        return f"Test error (RMSE) of {test.rmse:.4g} {test.unit}".rstrip()
    if test is not None and test.is_unbalanced:
        return f"AUC {test.auc:.3f} at a base rate of {percent(test.base_rate)}"
    return "A model" if test is None else f"{percent(test.accuracy)} test accuracy"


def _attack(facts: Facts) -> TradeOff:
    """What is left to attacks, from the releases and the accountant that epsilon is computed with."""
    events = {event_of(event): times for event, times in facts.released}
    accountant = ACCOUNTANTS[facts.recipe.privacy.accountant] if facts.declarations < 2 else RenyiOdometer()
    return TradeOff(accountant.compose(events))


def _sentence(attack: TradeOff, unit: str) -> str:
    """The bounds for readers who know no epsilon; the unit that the guarantee protects is a record or a user."""
    many, few = (most(attack.true_positive_rate(false_alarms)) for false_alarms in (0.01, 0.001))
    return (
        "Whoever sees everything released and knows all other records, and tries to tell whether one "
        f"{unit} took part, is right at most {most(attack.accuracy)} of the time; a coin toss is right 50 % of it. "
        f"With false alarms for at most 1 % of the {unit}s that took no part, any attack finds at most {many} of those "
        f"that did; with at most 0.1 %, at most {few}."
    )


def _confusion(facts: Facts) -> list[tuple[str, tuple[int, ...]]]:
    """The rows of the confusion matrix, each with the name of its class; none for many classes or a number."""
    if not isinstance(facts.test, ClassFigures) or len(facts.test.confusion) > 12:  # that is in run.json alone
        return []
    return list(zip(facts.class_names, facts.test.confusion, strict=True))
