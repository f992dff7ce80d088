"""Draw the picture of docs/batch-norm.md: what one record does to the clipped sum of a batch.

    python -m experiments.batch_norm [--check]

With --check nothing is written, and the exit code is 1 if the numbers in the picture are out of date. The library
computes them from the example that the page describes.
"""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from experiments.picture import main
from noisette.nn import PublicBatchNorm, convert_batch_norm
from noisette.training.report.figures import BLUE, INK, ORANGE, STYLE, svg
from papers.davody_2020.mixture_batch_norm import MixtureBatchNorm
from papers.drawing import standalone

PICTURE = Path(__file__).parent.parent / "docs" / "batch-norm" / "one-record.svg"
BOUND = 1.0


class Steep(nn.Module):
    """One weight behind a batch norm, with gradients far above the clipping norm. Inputs are (activation, sign)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, pairs: Tensor) -> Tensor:
        return 1e9 * pairs[:, 1] * self.weight * self.norm(pairs[:, :1])[:, 0]


ALIKE = torch.tensor([[0.005, 1.0]]).expand(31, 2)
RECORD = torch.tensor([[1.0, -1.0]])
PUBLIC = torch.zeros(128, 2)


def contributions(norm: type[nn.Module], batch: Tensor) -> list[float]:
    """The clipped gradient of each example of the batch, in units of the bound."""
    model = convert_batch_norm(Steep(), to=norm, public=PUBLIC)
    losses = model(batch)
    found = []
    for i in range(len(batch)):
        [gradient] = torch.autograd.grad(losses[i], [model.weight], retain_graph=True)
        found.append(float(gradient / max(1.0, float(gradient.norm()) / BOUND)))
    return found


def moved(norm: type[nn.Module]) -> tuple[float, float]:
    """The clipped sum without the record and with it."""
    return sum(contributions(norm, ALIKE)), sum(contributions(norm, torch.cat([ALIKE, RECORD])))


def drawn() -> str:
    """The picture as an SVG element."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.0), layout="constrained")
        panels = figure.subplots(1, 2, sharey=True)
        titles = {
            MixtureBatchNorm: "statistics of private and public examples",
            PublicBatchNorm: "statistics of public examples",
        }
        for axes, (norm, title) in zip(panels, titles.items(), strict=True):
            without, joined = moved(norm)
            for values, colour, place, name in (
                (contributions(norm, ALIKE), BLUE, -0.2, f"without the record: sum {without:+.0f} C"),
                (contributions(norm, torch.cat([ALIKE, RECORD])), ORANGE, 0.2, f"with it: sum {joined:+.0f} C"),
            ):
                axes.bar([k + place for k in range(1, len(values) + 1)], values, width=0.4, color=colour, label=name)
            axes.axhline(0, color=INK, linewidth=0.6)
            axes.set_title(title, fontsize=9, loc="left")
            axes.set_xlabel(
                f"example of the batch; the record is number 32.\nThe sum moves by {abs(joined - without):.0f} C"
            )
            axes.set_ylim(-1.25, 2.2)
            axes.set_yticks([-1, 0, 1], ["-C", "0", "C"])
            axes.grid(visible=False, axis="x")
            axes.legend(frameon=False, loc="upper left", fontsize=8)
        panels[0].set_ylabel("clipped gradient")
        return svg(figure, title="What one record moves with batch norm")


def numbers(picture: str) -> list[str]:
    """The sums in the picture."""
    return re.findall(r"sum moves by \d+ C|sum .\d+ C", picture)


if __name__ == "__main__":
    main(__doc__ or "", PICTURE, standalone(drawn()), numbers)
