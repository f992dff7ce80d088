"""The benchmark's figure: ratio to plain training, a row of dots for each model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's palette, which colour-blind readers can tell apart; noisette's engines filled, peers open.
_COLOURS = ("#0072B2", "#56B4E9", "#000000", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#999933")


def draw(report: dict[str, Any], path: Path) -> None:
    """Write the figure as SVG: time on the left, memory on the right, both as ratios to plain training."""
    results = report["results"]
    names = [name for name in results[0]["methods"] if name != "plain"]
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.62 * len(results) + 2.1), sharey=True)
    for axis, key, title in ((axes[0], "milliseconds", "time per step"), (axes[1], "peak_mib", "peak memory")):
        axis.axvline(1, color="0.5", linewidth=1, linestyle="--")
        for k, name in enumerate(names):
            points = [(ratio(result, name, key), row) for row, result in enumerate(results)]
            shown = [(x, y) for x, y in points if x is not None]
            ours = name.startswith("noisette")
            axis.scatter(
                [x for x, _ in shown],
                [y for _, y in shown],
                s=70 if ours else 42,
                facecolors=_COLOURS[k % len(_COLOURS)] if ours else "none",
                edgecolors=_COLOURS[k % len(_COLOURS)],
                marker="o" if ours else "s",
                linewidths=1.6,
                label=name,
                zorder=3 if ours else 2,
            )
        axis.set_xscale("log")
        axis.set_xlabel(f"{title}, ratio to plain training (log scale)")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axis.grid(axis="x", which="both", color="0.92")
        axis.set_axisbelow(True)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(results)), [result["title"].replace(", batch", ",\nbatch") for result in results])
    axes[0].set_ylim(len(results) - 0.5, -0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="upper center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.86))
    figure.savefig(path)
    plt.close(figure)


def ratio(result: dict[str, Any], name: str, key: str) -> float | None:
    mine, base = result["methods"].get(name, {}).get(key), result["methods"].get("plain", {}).get(key)
    return mine / base if mine and base else None
