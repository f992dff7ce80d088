"""Time per step as the batch grows, without and with clipping, from the committed benchmark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE, STYLE, svg
from papers.bethune_2024.runs import Run
from papers.section import Section

MEASURED = Path("benchmarks/results/clipless.json")
COMPARED = 10_000  # a batch for which both times are printed
TITLE = "Time per step as the batch grows"
_ABOUT = (
    "Seconds per step of Lipschitz networks for images of 28 x 28 pixels, measured by the library's benchmark: steps "
    "without privacy, without clipping, and with clipping by two methods. Read from benchmarks/results/clipless.json; "
    "to measure it yourself, run `python -m benchmarks --experiments clipless --out benchmarks/results` and then this "
    "command from the same folder. The paper's lines, below ours, are read off its figure 5: seconds per batch of "
    "convolutional networks on a GPU of 48 GB, so only the shapes of the curves are comparable.",
)
# Median seconds per batch; networks by their number of weights.
_PRINTED: Sequence[tuple[str, Mapping[int, float]]] = (
    ("clipless, 130K weights", {5_000: 0.13, 10_000: 0.24, 20_000: 0.55, 50_000: 1.30}),
    ("clipless, 510K weights", {5_000: 0.23, 10_000: 0.46, 20_000: 1.24}),
    ("clipless, 2,000K weights", {5_000: 0.5, 10_000: 1.05, 20_000: 2.7}),
    ("optax, 130K weights", {5_000: 0.12, 10_000: 0.24, 20_000: 0.54, 50_000: 1.72}),
    ("optax, 510K weights", {5_000: 0.22, 10_000: 0.46}),
    ("Opacus, 130K to 2,000K weights", {5_000: 1.15, 10_000: 2.4}),
)
_COLOURS = (BLUE, ORANGE, GREEN, "#b8609a", "#8a6d00", INK)
Course = Mapping[int, float]  # seconds of a step, by batch


def section(runs: Sequence[Run]) -> Section:
    """Make the figure and its table from the benchmark, if it was run."""
    ours = measured()
    printed = {("paper", name): course for name, course in _PRINTED}
    batches = sorted({batch for course in (ours | printed).values() for batch in course})
    header = ("network", "method", *(f"{batch:,}" for batch in batches))
    rows = [
        (network, method, *(f"{course[batch]:.3g}" if batch in course else "" for batch in batches))
        for (network, method), course in (ours | printed).items()
    ]
    if not ours:
        rows.insert(0, ("ours", "not run", *("" for _ in batches)))
    return Section("figure-speed", TITLE, _ABOUT, header, tuple(rows), _figure(ours) if ours else "")


def measured() -> dict[tuple[str, str], Course]:
    """Return the seconds of a step of each network and method, by batch; none if the benchmark was not run."""
    return dict(_courses(json.loads(MEASURED.read_text("utf-8")))) if MEASURED.is_file() else {}


def printed_ratio() -> str:
    """Return the printed times of Opacus as ratios to those without clipping."""
    times = dict(_PRINTED)
    opacus = times["Opacus, 130K to 2,000K weights"][COMPARED]
    ratios = [opacus / course[COMPARED] for name, course in _PRINTED if name.startswith("clipless")]
    return f"{min(ratios):.2g} to {max(ratios):.2g}"


def _courses(report: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], Course]]:
    """Yield the times of each network and method; there is none for batches that did not fit in memory."""
    cells: Sequence[Mapping[str, Any]] = report["cells"]
    for network in dict.fromkeys(cell["title"] for cell in cells):
        own = [cell for cell in cells if cell["title"] == network]
        for method in dict.fromkeys(name for cell in own for name in cell["methods"]):
            times = {cell["batch"]: cell["methods"].get(method, {}).get("seconds") for cell in own}
            yield (network, method), {batch: seconds for batch, seconds in times.items() if seconds}


def _figure(measured: Mapping[tuple[str, str], Course]) -> str:
    networks = list(dict.fromkeys(network for network, _ in measured))
    methods = list(dict.fromkeys(method for _, method in measured))
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(9.0, 3.6))
        panels = drawn.subplots(1, len(networks), squeeze=False, sharey=True)[0]
        for network, axes in zip(networks, panels, strict=True):
            for method, colour in zip(methods, _COLOURS, strict=False):
                _course(axes, measured.get((network, method), {}), method, colour)
            axes.set_title(network, loc="left", fontsize=9)
            axes.set(xscale="log", yscale="log", xlabel="examples in a batch")
            axes.tick_params(length=0)
        panels[0].set_ylabel("seconds per step")
        panels[-1].legend(loc="lower right", frameon=False, labelcolor=INK)
        drawn.subplots_adjust(left=0.08, right=0.985, bottom=0.15, top=0.91, wspace=0.1)
        return svg(drawn, title="Time of a step")


def _course(axes: Axes, course: Course, method: str, colour: str) -> None:
    if course:
        axes.plot(list(course), list(course.values()), "o-", color=colour, markersize=4, label=method)
