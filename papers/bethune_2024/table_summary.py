"""For each printed number what was reached here, with how many seeds, and what differs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from papers import summary
from papers.bethune_2024 import figure_pareto, figure_robustness, figure_speed, table_best, table_tabular
from papers.bethune_2024.runs import Median, Run, certified_of, median_of
from papers.section import Section

_ABOUT = (
    "The printed numbers that the parts below have beside ours; medians of the seeds, with minimum and maximum. "
    "Accuracies and areas are in per cent.",
)
# Rows of the figure by what is printed beside them, and what differs.
_ACCURACIES = (
    (
        "MNIST",
        "mnist-pixels",
        ("mnist-pixels", "from pixels; printed: a convolutional network of a notebook, with bounds that do not hold"),
    ),
    (
        "CIFAR-10",
        "cifar10-mixer",
        ("cifar10-frequencies", "two dense layers on low frequencies, settings of MNIST; images from JPEG files"),
        ("cifar10-scattering", "one layer on fixed wavelet coefficients, settings of MNIST; images from JPEG files"),
        (
            "cifar10-mixer",
            "a narrow mixer, 32 channels, half the steps of --full, which was not run; images from JPEG files",
        ),
    ),
)
_SPLIT = "one setting for all tables of a size and width; fixed features for small and wide tables; another split"
_BEST = f"the best of {table_best.TRIALS} settings on the test rows, which is how the printed ones were chosen"
_CERTIFIED, _WITHIN = "cifar10-tau-1.35", 4  # the largest printed at this distance, in 255ths


def section(runs: Sequence[Run]) -> Section:
    """Make the table from the finished runs and the committed benchmark."""
    return summary.section(
        [*_accuracies(runs), *_areas(runs), *_best_areas(runs), _certified(runs), *_ratios()], _ABOUT
    )


def _accuracies(runs: Sequence[Run]) -> Iterable[summary.Row]:
    rows = {row.name: row for row in figure_pareto.GRID.rows}
    for data, beside, *ours in _ACCURACIES:
        for name, differs in ours:
            for epsilon, printed in zip(figure_pareto.EPSILONS, rows[beside].printed, strict=True):
                setting = (rows[name].short or rows[name].whole)(epsilon)
                if printed and setting:
                    reached = median_of(runs, setting)
                    quantity = f"{data}, accuracy at epsilon {epsilon:g}"
                    yield summary.Row("figure pareto", quantity, printed, _shown(reached), _seeds(reached), differs)


def _areas(runs: Sequence[Run]) -> Iterable[summary.Row]:
    for row in table_tabular.GRID.rows:
        for method, printed in zip(table_tabular.METHODS, row.printed, strict=True):
            setting = row.whole(method)
            reached = median_of(runs, setting) if setting else None
            quantity = f"{row.name}, area under the ROC curve, {method}"
            yield summary.Row("table tabular", quantity, printed, _shown(reached), _seeds(reached), _SPLIT)


def _best_areas(runs: Sequence[Run]) -> Iterable[summary.Row]:
    for row in table_best.ROWS:
        for method, printed in zip(table_tabular.METHODS, row.printed, strict=True):
            if ours := row.whole(method):
                areas = table_best.areas(runs, ours)
                reached = f"{max(areas):.1f}" if areas else ""
                quantity = f"{row.name}, area under the ROC curve, {method}"
                yield summary.Row("table best", quantity, printed, (reached,), "1 each", _BEST)


def _certified(runs: Sequence[Run]) -> summary.Row:
    [row] = [row for row in figure_robustness.GRID.rows if row.name == _CERTIFIED]
    at = row.whole(_WITHIN)
    reached = certified_of(runs, *at) if at else None
    quantity = f"CIFAR-10 at epsilon 20, certified within {_WITHIN}/255"
    printed = row.printed[figure_robustness.PIXEL_STEPS.index(_WITHIN)]
    return summary.Row("figure robustness", quantity, printed, _shown(reached), _seeds(reached), "a mixer, --full only")


def _ratios() -> Iterable[summary.Row]:
    """Yield the time of Opacus as a ratio to that of steps without clipping."""
    measured, batch = figure_speed.measured(), figure_speed.COMPARED
    for network in dict.fromkeys(network for network, _ in measured) or ("a network",):
        clipless, opacus = (measured.get((network, name), {}).get(batch) for name in ("Clipless", "Opacus-functorch"))
        yield summary.Row(
            "figure speed",
            f"{network}, time of Opacus to clipless, batches of {batch:,}",
            figure_speed.printed_ratio(),
            (f"{opacus / clipless:.3g}" if clipless and opacus else "",),
            "1",
            "a processor; printed: convolutional networks of 130K to 2,000K weights on a GPU",
        )


def _shown(reached: Median | None) -> tuple[str]:
    if reached is None:
        return ("",)
    spread = f" ({reached.least:.1f} to {reached.most:.1f})" if reached.seeds > 1 else ""
    return (f"{reached.median:.1f}{spread}",)


def _seeds(reached: Median | None) -> str:
    return str(reached.seeds) if reached else ""
