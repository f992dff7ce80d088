"""The experiments: models, batch sizes, methods, and the measured quantity. After Lee & Kifer 2020."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from benchmarks.steps import whole_run
from benchmarks.steps.cell import Cell, Settings
from benchmarks.steps.memory import peak_memory
from benchmarks.steps.methods import ENGINES, FASTDP, METHODS
from benchmarks.steps.step_time import step_times

Rows = dict[str, dict[str, Any]]
Measure = Callable[[Cell, Sequence[str], Settings, Callable[[float], None]], Rows]

# The methods of the paper, of which nxBP is the baseline and ReweightGP its proposal, and noisette's default.
_PAPER = ("plain", "BookKeeping", "ReweightGP", "nxBP")
_OPACUS = tuple(name for name in METHODS if name.startswith("Opacus"))
_QUICK = ("plain", "plain-compiled", "compiled", "captured", "BookKeeping", "ReweightGP", *_OPACUS)
_ALL = (*_QUICK, *(name for name in ENGINES if name not in _QUICK), "nxBP")
_CLIPLESS = ("plain", "Clipless", "BookKeeping", *(name for name in ("Opacus-functorch",) if name in METHODS))
_LIPSCHITZ = ("lipschitz-dense", "lipschitz-mixer", "lipschitz-conv")
_LARGE = (*(f"resnet{depth}" for depth in (18, 34, 50, 101)), *(f"vgg{depth}" for depth in (11, 13, 16, 19)))


@dataclass(frozen=True)
class Experiment:
    """Cells and methods, the measured quantity, and the form of the figure."""

    title: str
    about: str
    cells: tuple[Cell, ...]
    methods: tuple[str, ...]
    unit: Literal["seconds", "bytes"] = "seconds"
    axis: Literal["batch", "image", "model"] | None = None  # of a figure of lines; None: a row of marks for each cell

    @property
    def measure(self) -> Measure:
        """The function that measures one cell."""
        return step_times if self.unit == "seconds" else peak_memory

    def only(
        self,
        models: Sequence[str] | None,
        methods: Sequence[str] | None,
        batches: Sequence[int] | None,
        images: Sequence[int] | None,
    ) -> Experiment:
        """The experiment with these models, methods (and plain training), batch sizes and image sizes only."""
        cells = tuple(cell for cell in self.cells if models is None or cell.name in models)
        if batches is not None:
            cells = tuple(cell.with_batch(batch) for cell in cells for batch in batches)
        if images is not None:
            cells = tuple(replace(cell, image=image) if cell.image else cell for cell in cells for image in images)
        chosen = self.methods if methods is None else tuple(dict.fromkeys(("plain", *methods)))
        return replace(self, cells=tuple(dict.fromkeys(self._with_target(cell) for cell in cells)), methods=chosen)

    def with_fastdp(self) -> Experiment:
        """The experiment with the modes of fastDP as well, if it is one that compares all that there is."""
        return replace(self, methods=(*self.methods, *FASTDP)) if "plain-compiled" in self.methods else self

    def _with_target(self, cell: Cell) -> Cell:
        """The cell with the targets of its model at its batch size, if there are any."""
        known = {(other.name, other.batch): (other.target, other.target_compiled) for other in self.cells}
        eager, compiled = known.get((cell.name, cell.batch), (None, None))
        return replace(cell, target=eager, target_compiled=compiled)


EXPERIMENTS: dict[str, Experiment] = {
    "targets": Experiment(
        "Time per step",
        "One private step against one plain step of the same model, eager and compiled, and the ratios aimed at.",
        (
            Cell("mlp", 128, target=1.1, target_compiled=1.0),
            Cell("mlp", 1024, target=0.95, target_compiled=1.0),
            Cell("cnn", 128, target=0.95, target_compiled=0.9),
            Cell("rnn", 128, target=1.2, target_compiled=1.2),
            Cell("lstm", 128, target=1.5, target_compiled=1.5),
            Cell("gru", 128, target=1.5, target_compiled=1.5),
            Cell("transformer", 128, target=1.15, target_compiled=1.05),
            Cell("resnet18-cifar", 32, target=1.15, target_compiled=1.15),
            Cell("vgg16-cifar", 32, target=1.15, target_compiled=1.15),
        ),
        _QUICK,
    ),
    "run": Experiment(
        "Time per step of a run",
        "The loop of the README, by its parts, against plain training on shuffled records and peers by their samplers.",
        tuple(
            Cell(name, batch, records=64 * batch)
            for name, batch in (
                *(("mlp", 128), ("mlp", 1024), ("cnn", 128), ("rnn", 128), ("lstm", 128), ("transformer", 128)),
                *(("resnet18-cifar", 32), ("vgg16-cifar", 32)),
            )
        ),
        ("plain", "plain-compiled", *whole_run.METHODS, *_OPACUS),
    ),
    "fig5": Experiment(
        "Architectures",
        "Time per step of the paper's architectures (figure 5 of Lee & Kifer).",
        tuple(Cell(name, 32) for name in ("mlp", "cnn", "rnn", "lstm", "transformer")),
        _PAPER,
    ),
    "fig6": Experiment(
        "Batch size",
        "Time per example as the batch grows (figure 6 of Lee & Kifer): nxBP gains nothing.",
        tuple(Cell(name, batch) for name in ("mlp", "cnn", "rnn") for batch in (16, 32, 64, 128)),
        _PAPER,
        axis="batch",
    ),
    "fig7": Experiment(
        "Depth",
        "Time per example as the network grows deeper (figure 7 of Lee & Kifer).",
        tuple(Cell(name, 128) for name in ("mlp", "mlp-4", "mlp-6", "mlp-8")),
        _PAPER,
        axis="model",
    ),
    "fig8": Experiment(
        "Large networks",
        "Time per step of large convolutional networks (figure 8 of Lee & Kifer).",
        tuple(Cell(name, 20, image=64) for name in _LARGE),
        _PAPER,
    ),
    "fig9": Experiment(
        "Image size",
        "Time per example as images grow (figure 9 of Lee & Kifer): the larger the image, the smaller the gain.",
        tuple(Cell("resnet18", 32, image=image) for image in (32, 64, 128, 256)),
        _PAPER,
        axis="image",
    ),
    "memory": Experiment(
        "Peak memory",
        "Memory of a private step in addition to the model and the batch, against a plain step.",
        (Cell("resnet18-cifar", 128), Cell("transformer", 128)),
        _ALL,
        unit="bytes",
    ),
    "large": Experiment(
        "Models that are fine-tuned",
        "One private step of models of the sizes that are fine-tuned on a GPU, against one plain step.",
        (Cell("resnet18", 64, image=224), Cell("vit-small", 32), Cell("bert-base", 32), Cell("gpt2", 8)),
        ("plain", "plain-compiled", "compiled", "captured", "BookKeeping", "ReweightGP", *_OPACUS),
    ),
    "clipless": Experiment(
        "Without clipping",
        "Time per example as the batch grows (figure 5 of Bethune et al.): a Lipschitz bound against clipping.",
        tuple(
            Cell(name, batch, target=1.1) for name in _LIPSCHITZ for batch in (1024, 2048, 5000, 10_000, 20_000, 50_000)
        ),
        _CLIPLESS,
        axis="batch",
    ),
    "clipless-memory": Experiment(
        "Peak memory without clipping",
        "Memory of a step of a Lipschitz network in addition to the model and the batch, against a plain step.",
        tuple(Cell(name, 5000) for name in _LIPSCHITZ),
        _CLIPLESS,
        unit="bytes",
    ),
}
