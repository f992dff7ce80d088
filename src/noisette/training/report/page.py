"""The report of a run as one HTML page, the bounds on attacks that it shows, and the other files of a run folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

import noisette
from noisette.accounting import Accountant, Event
from noisette.accounting.calibrate import NOISE_TAIL
from noisette.accounting.filters import RenyiOdometer
from noisette.accounting.interface import TradeOff
from noisette.accounting.registry import ACCOUNTANTS
from noisette.training.report import statement as words
from noisette.training.report.facts import Facts, NumberFigures, epsilon_after, facts_of_run, power_of_ten, upward
from noisette.training.report.facts import upward_percent as most
from noisette.training.report.figures import Panel, as_svg, course_of_run, recall_and_precision, templates
from noisette.training.run_folder import sealed

if TYPE_CHECKING:
    from torch import nn

    from noisette.run.private import PrivateRun

_POINTS = 20
_PUBLIC_TESTS = "The test examples are taken to be public, so choosing among the runs by them costs no more than this."
_HELD_OUT_TESTS = (
    "The test figures are of records held out, exact and without a guarantee: choosing among the runs by them, or "
    "publishing them, is not covered."
)
_OF_BASELINE = (
    "NOT PRIVATE is the dashed line: figures of the same run without privacy may tell everything about the records. Do "
    "not publish this page unless they are public; --no-baseline leaves the line out."
)
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
    card: dict[str, bytes] = {}  # to be completed by people, so it is not sealed
    if facts.private:
        title = f"Privacy statement of {facts.model_name} trained on {facts.data}"
        files["privacy.txt"] = words.as_text(words.statement(facts), title=title).encode(errors=_UNENCODABLE)
        card["card.md"] = words.as_card(facts).encode(errors=_UNENCODABLE)
    return files | card | {"run.json": sealed(json.loads(facts.as_json()), files).encode()}


def page(facts: Facts) -> str:
    """The report as HTML without scripts. It loads nothing, so nobody learns that it is read."""
    table = () if facts.test is None or isinstance(facts.test, NumberFigures) else facts.test.confusion
    return _PAGES.get_template("page.html").render(
        facts=facts,
        headline=facts.test.headline if facts.test else "A model",
        problem=facts.test.problem if facts.test else "",
        settings=words.settings(facts),
        course=_drawn(course_of_run(facts)) if facts.private else [],
        test_rows=facts.test.rows(facts.class_names) if facts.test else [],
        test_figures=_drawn(recall_and_precision(facts)),
        test_set=words.set_of_tests(facts),
        # That of many classes is in run.json alone.
        confusion=list(zip(facts.class_names, table, strict=True)) if table and len(table) <= 12 else [],
        attack=_attack(facts, ACCOUNTANTS[facts.recipe.privacy.accountant]) if facts.private else "",
        advice=words.advice(facts.search, facts.epsilon) if facts.search else "",
        sections=words.statement(facts).items() if facts.private else (),
        loading=_LOADING,
        upward=upward,
        power_of_ten=power_of_ten,
    )


def _drawn(panels: Sequence[tuple[Panel, str]]) -> list[tuple[Markup, str]]:
    return [(Markup(as_svg(panel)), caption) for panel, caption in panels]


def documents_of_curve(runs: Sequence[Facts], baseline: Facts | None) -> dict[str, bytes]:
    """The page, figures and numbers of private runs that differ in their budget alone, beside one without privacy."""
    first, privacy, released = runs[0], runs[0].recipe.privacy, Counter[Event]()
    for run in runs:
        released.update(run.events)
    together = ACCOUNTANTS[privacy.accountant].compose(released).epsilon(delta=privacy.delta - NOISE_TAIL)
    mark, measured, panels = "NOT PRIVATE: " if baseline else "", [_measured(run) for run in runs], []
    plain = _measured(baseline) if baseline else {}
    for what in measured[0]:
        line = [(run.epsilon, value) for run, of in zip(runs, measured, strict=True) if (value := of[what]) is not None]
        level = ("without privacy", value) if (value := plain.get(what)) is not None else None
        if line:
            title, most = f"{mark}Test {what} against ε", 1.0 if what in ("accuracy", "AUC") else None
            panels.append(Panel(title, "ε", f"test {what}", "private", line, None, most, level, by_factors=True))
    rows = [
        (
            f"epsilon {upward(run.epsilon)}" if run.private else "without privacy",
            ", ".join(f"{what} {value:.4g}" for what, value in of.items() if value is not None),
        )
        for run, of in zip((*runs, baseline), (*measured, plain), strict=True)
        if run is not None
    ]
    if (test := first.test) is not None and not isinstance(test, NumberFigures):
        rows.append(("best constant", f"accuracy {test.base_rate:.4g}, log loss {test.base_log_loss:.4g}"))
    remarks = [
        f"The {len(runs)} private runs together cost epsilon {upward(together)} at delta {power_of_ten(privacy.delta)} "
        f"({privacy.accountant}; {first.neighbouring}): they are releases about one data set, fixed before the "
        "first. The epsilon of one run holds where nothing of the others is published or used to choose.",
        _HELD_OUT_TESTS if first.recipe.data.holdout else _PUBLIC_TESTS,
        *([_OF_BASELINE] if baseline else []),
    ]
    told = {"private": baseline is None, "delta": privacy.delta, "epsilon_of_all": together, "words": remarks}
    told["runs"] = [{"epsilon": run.epsilon} | of for run, of in zip(runs, measured, strict=True)]
    told |= {"baseline": plain or None, "table": dict(rows)}
    figures = [as_svg(panel) for panel in panels]
    page = _PAGES.get_template("brief.html").render(
        title=f"{mark}What privacy costs",
        above=f"{first.model_name} on {first.data}",
        lead=remarks,
        figures=[(Markup(figure), f"The points are the {len(runs)} private runs.") for figure in figures],
        tables={"Test figures": rows},
        sections=(),
        version=first.version,
    )
    files = dict(zip(("curve.svg", "curve-log-loss.svg", "curve-auc.svg"), figures, strict=False))
    files |= {"curve.html": page, "curve.json": json.dumps(told, indent=2) + "\n"}
    return {name: text.encode(errors=_UNENCODABLE) for name, text in files.items()}


def _measured(facts: Facts) -> dict[str, float | None]:
    """The test figures by which runs are compared."""
    test = facts.test
    if isinstance(test, NumberFigures):
        return {"RMSE": test.rmse}
    of_two = {"AUC": test.auc} if test and len(test.confusion) == 2 else {}
    return {} if test is None else {"accuracy": test.accuracy, "log loss": test.log_loss} | of_two


def own_page(run: PrivateRun, delta: float) -> str:
    """The report of a run in a loop of one's own, at this delta, as HTML without scripts."""
    facts = facts_of_run(run, delta)
    spent, terms = run.steps_spent, facts.terms
    steps = sorted({max(1, round(spent * k / _POINTS)) for k in range(1, _POINTS + 1)}) if spent else []
    costs = [(step, min(epsilon_after(run, step, delta), facts.epsilon)) for step in steps]
    caption = f"The privacy cost at δ = {power_of_ten(delta)}, rounded upwards."
    panel = Panel("ε against steps", "training step", "ε spent", upward(facts.epsilon), costs, lowest=0)
    settings = {
        "data": facts.data,
        "declared size": f"{terms.public_users:,} users" if terms.public_users else f"{facts.declared_size:,}",
        "trained parameters": f"{facts.parameters:,}",
        "expected batch size": f"{terms.batch_size:g}",
        "steps": f"{facts.steps_taken:,} of {facts.steps_planned:,}",
        **words.privacy_rows(facts, facts.accountant.name),
        "clipping norm": "none: layers bound the gradient" if facts.lipschitz else f"{facts.max_grad_norm:g}",
    }
    return _PAGES.get_template("brief.html").render(
        title=f"Differential privacy at ε = {upward(facts.epsilon)}, δ = {power_of_ten(delta)}",
        above=f"a run on {facts.data}",
        lead=[_attack(facts, facts.accountant)],
        figures=[(Markup(as_svg(panel)), caption)] if costs else [],
        tables={"Settings": settings.items()},
        sections=words.statement(facts).items(),
        version=noisette.__version__,
    )


def _attack(facts: words.AnyRun, accountant: Accountant) -> str:
    """What is left to attacks, for readers who know no epsilon, from the releases and the accountant of epsilon."""
    by, unit = accountant if facts.declarations < 2 else RenyiOdometer(), facts.unit
    attack = TradeOff(by.compose(facts.events))
    many, few = (most(attack.true_positive_rate(false_alarms)) for false_alarms in (0.01, 0.001))
    return (
        "Whoever sees everything released and knows all other records, and tries to tell whether one "
        f"{unit} took part, is right at most {most(attack.accuracy)} of the time; a coin toss is right 50 % of it. "
        f"With false alarms for at most 1 % of the {unit}s that took no part, any attack finds at most {many} of those "
        f"that did; with at most 0.1 %, at most {few}."
    )
