"""For each figure what is printed, what was measured here, how often, and what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.steps.results import amount
from papers import summary
from papers.lee_kifer_2020 import table_memory
from papers.lee_kifer_2020.figures import FIGURES, ratio
from papers.lee_kifer_2020.runs import ROUNDS, Measured, Plan, Run, amount_of, captured_gain, gain, quickest
from papers.section import Section

_OURS = ("ours, ReweightGP", "ours, captured or compiled")
_ABOUT = (
    "The paper measures on a GTX 1080 Ti with 11 GB. Its figures have log axes without numbers at the points, so that "
    "mostly orderings can be compared; numbers that are not printed are empty. Times are of optimizer steps, from the "
    "forward pass on; times of data loading are left out, as in the paper. nxBP takes one example after another, "
    "multiLoss one backward pass per example, and ReweightGP is the paper's proposal; it was measured with an engine "
    "whose second pass differentiates the re-weighted losses, where today's weighs gradients by the rules. Beside "
    "them is this library's step as one captured graph, and in figures 5 and 7 also as that graph compiled, where the "
    "quicker of the two counts.",
    "One example at a time leaves a GPU mostly idle, and a processor with few threads much less, so that smaller gains "
    "over nxBP are to be expected here.",
    "Everywhere here examples are random tensors, on which times do not depend, the optimizer is SGD, where the paper "
    "has Adam, and ResNets and VGGs have group norm. Medians of the repetitions are compared.",
)
_PLANS = {figure.name: figure.plan for figure in FIGURES}
_SHAPES = "random tensors in the shape of MNIST's images"


@dataclass(frozen=True)
class Claim:
    """A statement of the paper about a figure, and the functions that say the same of what was measured.

    ``ours`` and ``captured`` are given at least one measured cell; the latter is about the captured or compiled step.
    """

    quantity: str
    paper: str
    ours: Callable[[Sequence[Measured]], str]
    captured: Callable[[Sequence[Measured]], str] = lambda cells: ""


def section(runs: Sequence[Run]) -> Section:
    """Make the table from the finished measurements."""
    rows = (row for name, claims in _CLAIMS.items() for row in _rows(name, claims, runs))
    return summary.section(rows, (*_ABOUT, *_machines(runs)), ours=_OURS, repeated="repetitions")


def _rows(name: str, claims: Sequence[Claim], runs: Sequence[Run]) -> Iterable[summary.Row]:
    plan = _plan(name)
    cells, expected = plan.measured(runs), len(plan.runs(runs))
    repetitions = _repetitions(cells, expected)
    for claim in claims:
        shown = (claim.ours(cells), claim.captured(cells)) if cells else ("", "")
        part = name.replace("-", " ")
        yield summary.Row(part, claim.quantity, claim.paper, shown, repetitions, _DIFFERS[name])


def _plan(name: str) -> Plan:
    return _PLANS.get(name, table_memory.PLAN)


def _repetitions(cells: Sequence[Measured], expected: int) -> str:
    """How often steps were measured, and how many cells are there if some are missing."""
    rounds = [len(row["each"]) for cell in cells for row in cell["methods"].values() if "each" in row]
    some = f", {len(cells)} of {expected} networks and sizes" if len(cells) < expected else ""
    return (_span(rounds, str) if rounds else "1" if cells else "") + (some if cells else "")


def _machines(runs: Sequence[Run]) -> list[str]:
    """One paragraph on the processors and their threads, if anything was measured."""
    kept = [run for plan in (*_PLANS.values(), table_memory.PLAN) for run in plan.runs(runs).values() if run]
    names = sorted({f"{run.machine}, {_threads(run.setting.threads)}" for run in kept})
    return [f"Ours were measured on: {'; '.join(names)}. The paper repeats {ROUNDS} times."] if names else []


def _threads(count: int) -> str:
    return f"{count} thread{'s' if count > 1 else ''}"


def _span(values: Iterable[float], shown: Callable[[float], str]) -> str:
    """The least and the greatest value, or the only one."""
    known = sorted(values)
    if not known:
        return ""
    ends = shown(known[0]), shown(known[-1])
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def _gains(cells: Iterable[Measured]) -> str:
    """The times of nxBP as ratios to ReweightGP's."""
    return _span([value for cell in cells if (value := gain(cell, "ReweightGP"))], ratio)


def _captured_gains(cells: Iterable[Measured]) -> str:
    return _span([value for cell in cells if (value := captured_gain(cell))], ratio)


def _gain_of(quantity: str, paper: str, keep: Callable[[Measured], bool] = lambda cell: True) -> Claim:
    """The gain over nxBP in some of the cells."""
    return Claim(
        quantity, paper, lambda cells: _gains(filter(keep, cells)), lambda cells: _captured_gains(filter(keep, cells))
    )


def _slowest(time: Callable[[Measured], float | None]) -> Callable[[Sequence[Measured]], str]:
    """The slowest network, of those for images."""

    def name(cells: Sequence[Measured]) -> str:
        times = {cell["title"]: value for cell in cells if cell["model"] != "transformer" and (value := time(cell))}
        return max(times, key=lambda title: times[title], default="")

    return name


def _captured_time(cell: Measured) -> float | None:
    name = quickest(cell)
    return amount_of(cell, name) if name else None


def _growth(time: Callable[[Measured], float | None]) -> Callable[[Sequence[Measured]], str]:
    """The time per example at batch 128 as a ratio to that at batch 16, over the networks."""

    def ratios(cells: Sequence[Measured]) -> Iterable[float]:
        per_example = {(cell["model"], cell["batch"]): value / cell["batch"] for cell in cells if (value := time(cell))}
        for model in dict.fromkeys(model for model, _ in per_example):
            if (model, 16) in per_example and (model, 128) in per_example:
                yield per_example[model, 128] / per_example[model, 16]

    return lambda cells: _span(ratios(cells), ratio)


def _quickest_printed(cells: Sequence[Measured]) -> str:
    """In how many cells ReweightGP is the quickest of the paper's private methods."""
    return _quickest(cells, lambda cell: amount_of(cell, "ReweightGP"), ("nxBP", "MultiLoss"))


def _captured_quickest(cells: Sequence[Measured]) -> str:
    """In how many cells the captured step is quicker than all of the paper's private methods."""
    return _quickest(cells, _captured_time, ("nxBP", "MultiLoss", "ReweightGP"))


def _quickest(cells: Sequence[Measured], time: Callable[[Measured], float | None], others: Sequence[str]) -> str:
    compared = [
        (own, [other for name in others if (other := amount_of(cell, name))]) for cell in cells if (own := time(cell))
    ]
    return f"in {sum(all(own < other for other in slower) for own, slower in compared)} of {len(compared)}"


def _failures_of_multi_loss(cells: Sequence[Measured]) -> str:
    there = [cell for cell in cells if "MultiLoss" in cell["methods"]]
    failed = [cell["title"] for cell in there if "error" in cell["methods"]["MultiLoss"]]
    return f"{', '.join(failed) or 'none'} of {len(there)}" if there else ""


def _by_image(gain_of: Callable[[Measured], float | None]) -> Callable[[Sequence[Measured]], str]:
    return lambda cells: ", ".join(f"{cell['image']}: {ratio(value)}" for cell in cells if (value := gain_of(cell)))


def _memory(model: str, method: str) -> Callable[[Sequence[Measured]], str]:
    """The peak of a method as a ratio to plain training, by image size."""

    def ratios(cells: Sequence[Measured]) -> str:
        known = [(cell, table_memory.to_plain(cell, method)) for cell in cells if cell["model"] == model]
        return ", ".join(f"{cell['image']}: {ratio(value)}" for cell, value in known if value)

    return ratios


def _runs_at_batch_500(method: str) -> Callable[[Sequence[Measured]], str]:
    def outcome(cells: Sequence[Measured]) -> str:
        there = [cell for cell in cells if cell["batch"] == table_memory.MANY.batch]
        taken = [amount_of(cell, method, "bytes") for cell in there]
        return ", ".join(f"runs, {amount(value, 'bytes')}" if value else "fails" for value in taken)

    return outcome


_CLAIMS: dict[str, tuple[Claim, ...]] = {
    "figure-5": (
        _gain_of("time of nxBP to ours, batch 32", "far above 1 everywhere"),
        Claim(
            "slowest network on images",
            "LSTM",
            _slowest(lambda cell: amount_of(cell, "ReweightGP")),
            _slowest(_captured_time),
        ),
    ),
    "figure-6": (
        _gain_of("time of nxBP to ours, batch 128", "54 to 94", lambda cell: cell["batch"] == 128),
        Claim(
            "time per example, batch 128 to 16",
            "falls",
            _growth(lambda cell: amount_of(cell, "ReweightGP")),
            _growth(_captured_time),
        ),
        Claim("the same, plain training", "falls", _growth(lambda cell: amount_of(cell, "plain"))),
        Claim("the same, nxBP", "flat", _growth(lambda cell: amount_of(cell, "nxBP"))),
    ),
    "figure-7": (
        _gain_of("time of nxBP to ours, 2 hidden layers", "94 (Fashion-MNIST)", lambda cell: cell["model"] == "mlp"),
        _gain_of("time of nxBP to ours, 4 to 8 hidden layers", "", lambda cell: cell["model"] != "mlp"),
    ),
    "figure-8": (
        Claim("quickest of the private methods", "ReweightGP", _quickest_printed, _captured_quickest),
        _gain_of("time of nxBP to ours, 64 × 64", "large", lambda cell: cell["image"] == 64),
        _gain_of("time of nxBP to ours, 256 × 256", "small", lambda cell: cell["image"] == 256),
        Claim("multiLoss runs out of memory", "VGGs, ResNet-101 at 256 × 256", _failures_of_multi_loss),
    ),
    "figure-9": (
        Claim(
            "time of nxBP to ours, by image width",
            "shrinks with the width",
            _by_image(lambda cell: gain(cell, "ReweightGP")),
            _by_image(captured_gain),
        ),
    ),
    "table-memory": (
        Claim(
            "ResNet-101, peak to plain training, by image width",
            "at most 1.25; first batch that fails 36, plain 48",
            _memory("resnet101", "ReweightGP"),
            _memory("resnet101", "captured"),
        ),
        Claim("the same, multiLoss", "first batch that fails 18", _memory("resnet101", "MultiLoss")),
        Claim(
            "ResNet-18, 32 × 32, batch 500",
            "ReweightGP runs",
            _runs_at_batch_500("ReweightGP"),
            _runs_at_batch_500("captured"),
        ),
    ),
}
_DIFFERS = {
    "figure-5": f"{_SHAPES}, and texts of 128 words in the place of 512; time per step for time per epoch",
    "figure-6": _SHAPES,
    "figure-7": f"{_SHAPES}; hidden layers after the second repeat its width, 256",
    "figure-8": "random tensors in the place of LSUN; on a processor 64 × 64; of VGGs only VGG-11, without multiLoss",
    "figure-9": "random tensors in the place of LSUN; on a processor up to 128 × 128",
    "table-memory": "on a processor 128 × 128 at batch 16: the peak of a process instead of the first batch that fails",
}
