"""The figures by their number: what each needs to be run, and what it makes of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from noisette import durable
from noisette.report.svg import standalone
from noisette.report.templates import templates
from noisette.reproduce.abadi_2016 import figure_2, figure_3, figure_4, figure_5, figure_6
from noisette.reproduce.abadi_2016.panels import plans
from noisette.reproduce.abadi_2016.runs import Run, read
from noisette.reproduce.abadi_2016.setting import Plan
from noisette.reproduce.section import Section, markdown

RUNS = "runs.jsonl"
PAGE = "abadi-2016.html"
TITLE = "Deep Learning with Differential Privacy, made again"
ABOUT = (
    "The figures of Abadi et al. 2016, with the printed number beside ours. Epsilon is for adding or removing one "
    "record, with lots drawn by Poisson sampling; each run is priced by itself, as in the paper, and neither several "
    "seeds nor the choice of settings is charged.",
)
_PAGES = templates("reproduce")
_SEEDS, _SEED = (0, 1, 2), (0,)


@dataclass(frozen=True)
class Asked:
    """What of a figure is to be run: with which seeds, on which grid, from which file of public weights."""

    seeds: Sequence[int]
    full: bool = False
    weights: str | None = None


@dataclass(frozen=True)
class Figure:
    """A figure of the paper.

    ``data`` is what its runs are trained on and ``seeds`` are those of the command that names none; both are empty
    where nothing is trained. ``options`` are those of the command that it understands beside seeds.
    """

    title: str
    section: Callable[[Sequence[Run]], Section]
    plans: Callable[[Asked], list[Plan]] = lambda asked: []
    data: str = ""
    seeds: Sequence[int] = ()
    options: frozenset[str] = frozenset()


FIGURES: Mapping[int, Figure] = {
    2: Figure(figure_2.TITLE, lambda runs: figure_2.section()),
    3: Figure(figure_3.TITLE, figure_3.section, lambda asked: plans(figure_3.PANELS, asked.seeds), "mnist", _SEEDS),
    4: Figure(
        figure_4.TITLE,
        figure_4.section,
        lambda asked: figure_4.plans(asked.seeds, full=asked.full),
        "mnist",
        _SEEDS,
        frozenset({"full"}),
    ),
    5: Figure(
        figure_5.TITLE,
        figure_5.section,
        lambda asked: figure_5.plans(asked.seeds, full=asked.full),
        "mnist",
        _SEED,
        frozenset({"full"}),
    ),
    6: Figure(
        figure_6.TITLE,
        figure_6.section,
        lambda asked: plans(figure_6.PANELS, asked.seeds, weights=asked.weights),
        "cifar10",
        _SEEDS,
        frozenset({"weights"}),
    ),
}


def write(number: int, out: Path) -> Section:
    """Draw a figure from the runs of a folder, and write it there with a page of all figures that the folder holds.

    Guarantee: no file is ever half-written; each takes the place of an older one when it is whole.
    """
    shown = [other for other in FIGURES if other == number or (out / f"figure-{other}.svg").exists()]
    sections = dict(zip(shown, drawn(shown, out / RUNS), strict=True))
    for section in sections.values():
        durable.write(out / f"{section.name}.svg", standalone(section.figure).encode())
    page = _PAGES.get_template("page.html").render(title=TITLE, about=ABOUT, sections=sections.values())
    durable.write(out / PAGE, page.encode())
    return sections[number]


def drawn(numbers: Sequence[int], runs: Path) -> list[Section]:
    """The figures, made from the runs of a file."""
    finished = read(runs)
    return [FIGURES[number].section(finished) for number in numbers]


def document(sections: Sequence[Section], folder: str, origin: str) -> str:
    """The figures as a Markdown document that tells its origin; their files lie in ``folder``."""
    return "\n\n".join([f"# {TITLE}", *ABOUT, origin, *(markdown(section, folder) for section in sections)]) + "\n"
