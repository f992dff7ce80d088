"""One example moves the sum by at most 1 + 2^-13 bounds in single precision, for random examples and for bad ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine
from noisette.core.release import ROUNDING
from small_loop import clipped_by

BOUND, WIDTH = 0.7, 64


def scales(x: Tensor) -> Tensor:
    """Rows of random directions, of norms from far below the bound to far above it."""
    return x * torch.logspace(-4, 4, len(x)).unsqueeze(1)


def pairs(x: Tensor) -> Tensor:
    """Each row with its opposite beside it, so that partial sums are small and rounding errors are not."""
    return torch.stack([x[: len(x) // 2], -x[: len(x) // 2]], 1).flatten(0, 1)


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda x: x,
    "small before big": scales,
    "pairs that cancel": pairs,
    "far pairs that cancel": lambda x: torch.cat([x[: len(x) // 2], -x[: len(x) // 2]]),
    "equal, one number large": lambda x: torch.eye(WIDTH)[:1] + 1e-4 * x[:1].expand(len(x), -1),
    "just at the bound": lambda x: BOUND * torch.nn.functional.normalize(x) * (1 + 1e-7 * torch.randn(len(x), 1)),
}
ENGINES = [BookKeeping(), ReweightGP(), PerExampleLoop()]


def summed(x: Tensor, engine: Engine, size: int) -> Tensor:
    """The clipped sum of a linear model whose gradients are the examples, in double precision."""
    model = nn.Linear(WIDTH, 1, bias=False)
    parts = [(part,) for part in x.split(size)]
    return clipped_by(model, BOUND, lambda model, x: model(x).sum(), *parts, engine=engine, capture="eager")


@pytest.mark.parametrize("count", [256, 4096])
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
@pytest.mark.parametrize("case", CASES)
def test_a_record_more_or_less_moves_the_sum_within_the_allowance(case: str, engine: Engine, count: int) -> None:
    """At the beginning, in the middle and at the end, where those behind it change their blocks and microbatches."""
    if isinstance(engine, PerExampleLoop) and count > 256:
        pytest.skip("it adds them up one by one in double precision")
    generator = torch.Generator().manual_seed(count)
    x = CASES[case](torch.randn(count, WIDTH, generator=generator))
    size = count if count == 256 else 1000
    whole = summed(x, engine, size)
    moved = [
        float((whole - summed(torch.cat([x[:k], x[k + 1 :]]), engine, size)).norm()) for k in (0, count // 2, count - 1)
    ]
    assert max(moved) <= BOUND * (1 + ROUNDING)
    if case != "small before big":
        assert max(moved) >= 0.999 * BOUND or case == "random", "the bound is reached"


def test_the_allowance_is_used_to_less_than_a_tenth_with_blocks() -> None:
    """What the documentation says of sums in blocks; rounding of the release itself included."""
    x = CASES["equal, one number large"](torch.randn(4096, WIDTH, generator=torch.Generator().manual_seed(1)))
    moved = float((summed(x, BookKeeping(), 4096) - summed(x[1:], BookKeeping(), 4096)).norm())
    assert moved <= BOUND * (1 + 0.1 * ROUNDING)
