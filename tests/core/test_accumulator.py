"""The running sum of a batch: in double precision, whole or not at all, without copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from noisette.core import clip as accumulator
from noisette.core.clip import Accumulator
from noisette.errors import PrivacyError

PARAMETERS = {
    "weight": torch.zeros(5, 3),
    "scalar": torch.zeros(()),
    "turned": torch.zeros(3, 5),
    "none": torch.zeros(2),
}


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
