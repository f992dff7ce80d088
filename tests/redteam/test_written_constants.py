"""Constants of a vectorised loss into which the training loop writes what it computed from a batch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import noisette
from noisette.errors import PrivacyError

F = nn.functional
Kept = dict[str, Tensor]


def _plain(kept: Kept) -> Tensor:
    return kept["weights"]


def _written_in_place(kept: Kept) -> Tensor:
    return kept["weights"].clamp_(0)


def _own_constant(kept: Kept) -> Tensor:
    return kept.setdefault("made", torch.ones(3))


def _own_view(kept: Kept) -> Tensor:
    if "made" not in kept:
        kept["made"] = kept["weights"].view(-1)
    return kept["made"]


def _table(kept: Kept) -> Tensor:
    if "made" not in kept:
        kept["made"] = torch.zeros(3)
        kept["made"][0] = 1.0
        kept["made"][1:] = 2.0
    return kept["made"]


def _train(constant: Callable[[Kept], Tensor], write: Callable[[Kept, Tensor], None]) -> None:
    x, y = torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2])
    kept = {"weights": torch.ones(3)}
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (F.cross_entropy(model(x), y, reduction="none") * constant(kept)[y]).sum()

    with noisette.privatize(
        noisette.PerExampleClip(model, 1.0),
        optimizer,
        (x, y),
        sampling_rate=1.0,
        expected_batch_size=6,
        steps=3,
        noise_multiplier=1.0,
    ) as run:
        for batch in run.batches():
            for xs, ys in batch.microbatches(3):
                write(kept, xs)
                run.accumulate(loss, xs, ys)
            optimizer.step()


def _write_mean(name: str) -> Callable[[Kept, Tensor], None]:
    def write(kept: Kept, x: Tensor) -> None:
        if "made" in kept or name == "weights":
            kept["weights" if name == "base" else name].fill_(float(x.abs().mean()))

    return write


@pytest.mark.parametrize(
    ("constant", "name"),
    [(_plain, "weights"), (_written_in_place, "weights"), (_own_constant, "made"), (_own_view, "base")],
)
def test_numbers_of_a_batch_in_a_constant_are_refused(constant: Callable[[Kept], Tensor], name: str) -> None:
    with pytest.raises(PrivacyError, match="written to"):
        _train(constant, _write_mean(name))


@pytest.mark.parametrize("constant", [_plain, _own_constant, _own_view, _table])
def test_constants_that_no_loop_writes_are_kept_between_calls(constant: Callable[[Kept], Tensor]) -> None:
    _train(constant, lambda kept, x: None)
