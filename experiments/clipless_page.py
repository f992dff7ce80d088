"""Draw the picture of docs/clipless.md: bounds propagated forward and backward through a network.

    python -m experiments.clipless_page [--check]

With --check nothing is written, and the exit code is 1 if the numbers in the picture are out of date. The library
computes them for the network on that page.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from experiments.picture import main
from noisette import LipschitzBound
from noisette.lipschitz.bound import LayerBound
from noisette.nn.lipschitz import BoundedInput, GroupSort2, MixerBlock, PatchConv2d, SpectralLinear, TauCrossEntropy
from noisette.training.report.figures import BLUE, FAINT, INK, ORANGE, STYLE, svg
from papers.drawing import standalone

PICTURE = Path(__file__).parent.parent / "docs" / "clipless" / "bounds.svg"
TAU = 8.0
_STEP, _WIDTH, _LETTER = 1.22, 0.94, 7.5
_AHEAD, _BOX, _BACK, _SUM = 2.05, 1.45, 0.85, 0.2  # heights of the rows


def network() -> nn.Module:
    """The network of the page."""
    return nn.Sequential(
        BoundedInput(x0=3.0),
        PatchConv2d(1, 64, patch=4),
        GroupSort2(),
        MixerBlock(tokens=49, channels=64),
        nn.Flatten(),
        SpectralLinear(3136, 10),
    )


def layers() -> list[LayerBound]:
    """The bounds of its layers."""
    return LipschitzBound(network(), loss=TauCrossEntropy(TAU), input_shape=(1, 28, 28), slack=0.0).layers()


def drawn() -> str:
    """The picture as an SVG element."""
    parts = layers()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 2.75))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set(xlim=(-2.75, _STEP * len(parts) + 0.72), ylim=(-0.22, 2.4))
        axes.axis("off")
        for height, colour, text in (
            (_AHEAD, BLUE, "forward: how long\nan example can be"),
            (_BACK, ORANGE, "back: how long its\ngradient can be"),
            (_SUM, INK, "product: how far it can\nmove the gradient sum\nof each weight"),
        ):
            axes.text(-2.68, height, text, color=colour, fontsize=8, va="center")
        _arrow(axes, -1, 0, _AHEAD, "any", BLUE)
        for k, part in enumerate(parts):
            _box(axes, k, part.kind, trained=bool(part.sensitivities))
            if k:
                _arrow(axes, k - 1, k, _AHEAD, f"≤ {part.input_norm:.2f}", BLUE)
                _arrow(axes, k, k - 1, _BACK, f"≤ {parts[k - 1].gradient_norm:.2f}", ORANGE)
            _product(axes, k, part)
        last = len(parts)
        _box(axes, last, "loss", trained=False)
        _arrow(axes, last - 1, last, _AHEAD, f"≤ {parts[-1].input_norm:.2f}", BLUE)
        _arrow(axes, last, last - 1, _BACK, f"≤ {parts[-1].gradient_norm:.2f}", ORANGE)
        return svg(figure, title="Bounds without clipping")


def _box(axes: Axes, place: int, name: str, *, trained: bool) -> None:
    left = _STEP * place - _WIDTH / 2
    axes.add_patch(
        matplotlib.patches.Rectangle(
            (left, _BOX - 0.24), _WIDTH, 0.48, facecolor="none", edgecolor=INK if trained else FAINT, linewidth=1
        )
    )
    lines = re.sub(r"(?<=[a-z0-9])(?=[A-Z][a-z])", "\n", name)
    axes.text(_STEP * place, _BOX, lines, ha="center", va="center", fontsize=_LETTER)


def _arrow(axes: Axes, start: int, end: int, height: float, text: str, colour: str) -> None:
    """From the middle of one box to that of the next, with its bound above."""
    axes.annotate(
        "",
        (_STEP * end - 0.1 * (end - start), height),
        (_STEP * start + 0.1 * (end - start), height),
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 0},
    )
    axes.text(_STEP * (start + end) / 2, height + 0.07, text, color=colour, ha="center", va="bottom", fontsize=_LETTER)


def _product(axes: Axes, place: int, part: LayerBound) -> None:
    for value in {f"{value:.2f}" for value in part.sensitivities.values()}:
        many = f"{len(part.sensitivities)} weights:\n" if len(part.sensitivities) > 1 else ""
        text = f"{many}{part.input_norm:.2f} × {part.gradient_norm:.2f}\n= {value}"
        axes.text(_STEP * place, _SUM, text, ha="center", va="center", fontsize=_LETTER)


def numbers(picture: str) -> list[str]:
    """The bounds in the picture."""
    return re.findall(r"\d+\.\d\d(?=<| ×)", picture)


if __name__ == "__main__":
    main(__doc__ or "", PICTURE, standalone(drawn()), numbers)
