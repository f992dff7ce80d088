"""The curve of what privacy costs: the test figures of like runs against epsilon, as a page, figures and numbers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from noisette.accounting import Event
from noisette.accounting.budget import NOISE_TAIL
from noisette.accounting.registry import ACCOUNTANTS
from noisette.training.report.facts import Facts, NumberFigures, power_of_ten, upward
from noisette.training.report.figures import Panel, as_svg, standalone, templates

_PAGES = templates("noisette.training.report")
_BASELINE = (
    "The dashed line is the same run without privacy. Its figures may tell everything about the records, so do not "
    "publish this page unless the records are public; --no-baseline leaves the line out."
)
_PUBLIC = "The test examples are taken to be public, so choosing among the runs by them costs no more than this."
_HELD_OUT = (
    "The figures are of records held out, exact and without a guarantee: choosing among the runs by them, or "
    "publishing them, is not covered."
)


@dataclass(frozen=True)
class Curve:
    """Private runs that differ in their budget alone, from the smallest on, and a run without privacy, or ``None``."""

    runs: Sequence[Facts]
    baseline: Facts | None

    @property
    def epsilon_of_all(self) -> float:
        """The cost of all runs, at their delta: they are about one data set, and were fixed before the first."""
        privacy, released = self.runs[0].recipe.privacy, Counter[Event]()
        for run in self.runs:
            released.update(run.events)
        return ACCOUNTANTS[privacy.accountant].compose(released).epsilon(delta=privacy.delta - NOISE_TAIL)

    def documents(self) -> dict[str, bytes]:
        """The names and the contents of the files, of which the page is ``curve.html``."""
        names = ("curve.svg", "curve-log-loss.svg")
        files = {"curve.html": self.page(), "curve.json": self.as_json() + "\n"}
        files |= {name: standalone(as_svg(panel)) for name, panel in zip(names, self._panels(), strict=False)}
        return {name: text.encode(errors="backslashreplace") for name, text in files.items()}

    def page(self) -> str:
        facts = self.runs[0]
        words = [("lead", text) for text in self._words()]
        if self.baseline is not None:
            words.insert(0, ("warning", _BASELINE))
        rows = [(f"ε {name}", figures) for name, figures in self._rows()]
        return _PAGES.get_template("brief.html").render(
            title=self._titled("What privacy costs"),
            above=f"{facts.model_name} on {facts.data}",
            lead=words,
            figures=[(Markup(as_svg(panel)), f"The points are the {len(self.runs)} runs.") for panel in self._panels()],
            tables={"Test figures": rows},
            sections=(),
            version=facts.version,
        )

    def as_text(self) -> str:
        """The figures of each run and the words of the page, for a terminal."""
        rows = [f"epsilon {name:<8}  {figures}" for name, figures in self._rows()]
        return "\n".join([self._titled(self.runs[0].data), *rows, *self._words()])

    def as_json(self) -> str:
        privacy = self.runs[0].recipe.privacy
        facts = {
            "private": self.baseline is None,
            "data": self.runs[0].data,
            "model": self.runs[0].model_name,
            "delta": privacy.delta,
            "neighbouring": self.runs[0].neighbouring,
            "accountant": privacy.accountant,
            "epsilon_of_all": self.epsilon_of_all,
            "runs": [{"budget": r.recipe.privacy.epsilon, "epsilon": r.epsilon} | _measured(r) for r in self.runs],
            "baseline": self.baseline and _measured(self.baseline),
        }
        return json.dumps(facts, indent=2)

    def _titled(self, title: str) -> str:
        return title if self.baseline is None else f"NOT PRIVATE: {title}"

    def _rows(self) -> list[tuple[str, str]]:
        """The epsilon of each run, and its figures."""
        runs = self.runs if self.baseline is None else (*self.runs, self.baseline)
        told = [
            [f"{what.replace('_', ' ')} {value:.4g}" for what, value in _measured(run).items() if value is not None]
            for run in runs
        ]
        return [(upward(run.epsilon), ", ".join(figures)) for run, figures in zip(runs, told, strict=True)]

    def _words(self) -> list[str]:
        facts = self.runs[0]
        privacy, count = facts.recipe.privacy, len(self.runs)
        cost = (
            f"The {count} private runs together cost epsilon {upward(self.epsilon_of_all)} at delta "
            f"{power_of_ten(privacy.delta)}, by the accountant {privacy.accountant} ({facts.neighbouring}): they are "
            "releases about one data set, and were fixed before the first. The epsilon of a single run holds where "
            "nothing of the others is published, and nothing is chosen by them."
        )
        return [cost, _PUBLIC if facts.recipe.data.holdout is None else _HELD_OUT]

    def _panels(self) -> list[Panel]:
        """A panel for each figure that every run has."""
        unit, panels = self.runs[0].recipe.data.unit, []
        for what in _measured(self.runs[0]):
            points = [(run.epsilon, value) for run in self.runs if (value := _measured(run)[what]) is not None]
            base = None if self.baseline is None else _measured(self.baseline)[what]
            level = None if base is None else ("without privacy, NOT PRIVATE", base)
            vertical = f"test {what.replace('_', ' ')}" + (f" ({unit})" if unit and what == "rmse" else "")
            title = self._titled(f"Test {what.replace('_', ' ')} against ε")
            if points:
                panels.append(Panel(title, "ε", vertical, "private", points, level=level, by_factors=True))
        return panels


def _measured(facts: Facts) -> dict[str, float | None]:
    """The test figures of a run that are compared, by name."""
    test = facts.test
    assert test is not None, "there are test examples"
    if isinstance(test, NumberFigures):
        return {"rmse": test.rmse}
    return {"accuracy": test.accuracy, "log_loss": test.log_loss}
