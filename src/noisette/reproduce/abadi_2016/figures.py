"""The figures by their number: what each needs to be run, and what it makes of the runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from noisette import durable
from noisette.report.svg import standalone
from noisette.report.templates import templates
from noisette.reproduce.abadi_2016 import figure_2, figure_3, figure_4, figure_5
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
class Figure:
    """A figure of the paper; ``seeds`` are those of the command that names none, empty where nothing is trained."""

    title: str
    seeds: Sequence[int]
    plans: Callable[[Sequence[int], bool], list[Plan]]
    section: Callable[[Sequence[Run]], Section]
    has_grids: bool = False  # a small and a full one


FIGURES: Mapping[int, Figure] = {
    2: Figure(figure_2.TITLE, (), lambda seeds, full: [], lambda runs: figure_2.section()),
    3: Figure(figure_3.TITLE, _SEEDS, lambda seeds, full: figure_3.plans(seeds), figure_3.section),
    4: Figure(figure_4.TITLE, _SEEDS, lambda seeds, full: figure_4.plans(seeds, full=full), figure_4.section, True),
    5: Figure(figure_5.TITLE, _SEED, lambda seeds, full: figure_5.plans(seeds, full=full), figure_5.section, True),
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


def document(sections: Sequence[Section], folder: str) -> str:
    """The figures as a Markdown document; their files lie in ``folder``."""
    return "\n\n".join([f"# {TITLE}", *ABOUT, *(markdown(section, folder) for section in sections)]) + "\n"
