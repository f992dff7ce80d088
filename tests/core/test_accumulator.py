"""The running sum of a batch: in double precision, whole or not at all, without copies."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core import clip as accumulator
from noisette.core.clip import Accumulator, Engine
from noisette.core.release import ROUNDING
from noisette.errors import PrivacyError
from small_loop import clipped_by

SHAPES = {"weight": (5, 3), "scalar": (), "turned": (3, 5), "none": (2,)}
PARAMETERS = {name: torch.zeros(shape) for name, shape in SHAPES.items()}


def microbatch(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(seed)
    sums = {name: scale * torch.randn(p.shape, generator=made) for name, p in PARAMETERS.items() if name != "none"}
    return sums | {"turned": sums["turned"].t().contiguous().t()}


def test_sums_are_in_double_precision() -> None:
    sums, parts = Accumulator(), [microbatch(k, 10.0**k) for k in range(-3, 5)]
    for _ in range(2):
        for part in parts:
            sums.add(part)
        popped = sums.pop_sums(PARAMETERS)
        for name in parts[0]:
            exact = torch.stack([part[name].double() for part in parts]).cumsum(0)[-1]
            torch.testing.assert_close(popped[name], exact, rtol=0, atol=0)
        assert torch.equal(popped["none"], torch.zeros(2))


def test_nothing_is_added_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    sums, one, other = Accumulator(), microbatch(1), microbatch(2)
    sums.add(one)
    made = torch.empty_like

    def second_fails(sum: Tensor, **kind: Any) -> Tensor:
        if sum.shape == (3, 5):
            raise torch.OutOfMemoryError("simulated")
        return made(sum, **kind)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty_like", second_fails)
        with pytest.raises(torch.OutOfMemoryError):
            sums.add(other)
    sums.add(other)
    for name, popped in sums.pop_sums(PARAMETERS).items():
        if name in one:
            assert torch.equal(popped, one[name].double() + other[name])


def test_an_interrupted_addition_is_never_released(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = Accumulator()
    sums.add(microbatch(1))
    whole, calls = accumulator._add, []

    def interrupted(*arguments: object) -> None:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(accumulator, "_add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sums.add(microbatch(2))
    with pytest.raises(PrivacyError, match="part of a microbatch"):
        sums.pop_sums(PARAMETERS)
    assert not any(popped.any() for popped in sums.pop_sums(PARAMETERS).values()), "it starts from nothing"


BOUND, WIDTH = 0.7, 64


CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "random": lambda x: x,
    "small before big": lambda x: x * torch.logspace(-4, 4, len(x)).unsqueeze(1),
    "pairs that cancel": lambda x: torch.stack([x[: len(x) // 2], -x[: len(x) // 2]], 1).flatten(0, 1),
    "far pairs that cancel": lambda x: torch.cat([x[: len(x) // 2], -x[: len(x) // 2]]),
    "equal, one number large": lambda x: torch.eye(WIDTH)[:1] + 1e-4 * x[:1].expand(len(x), -1),
    "just at the bound": lambda x: BOUND * torch.nn.functional.normalize(x) * (1 + 1e-7 * torch.randn(len(x), 1)),
}
ENGINES = [BookKeeping(), ReweightGP(), PerExampleLoop()]


def summed(x: Tensor, engine: Engine, size: int) -> Tensor:
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
    x = CASES[case](torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(count)))
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
