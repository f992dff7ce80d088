"""A run of a model whose parameters are sharded: the batches, sums, noise and costs of a single process."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from fsdp_loop import take_steps
from process_group import alone, on_ranks


@pytest.mark.parametrize(
    ("kind", "size", "settings"),
    [("fsdp", 2, {}), ("fsdp", 3, {}), ("hsdp", 4, {}), ("kept", 2, {}), ("fsdp", 3, {"rate": 0.03})],
    ids=str,
)
def test_a_run_is_that_of_one_process(kind: str, size: int, settings: dict[str, float]) -> None:
    work = partial(take_steps, kind, **settings)
    truth = alone(work)
    courses = [outcome.value for outcome in on_ranks(size, work, known_key=True)]
    for course in courses:
        for found, expected in zip(course.grads, truth.grads, strict=True):
            for name, grad in expected.items():
                assert float((found[name] - grad).abs().max()) < 1e-15, name
        assert (course.epsilon, course.events) == (truth.epsilon, truth.events)
    for parts in zip(truth.indices, *(course.indices for course in courses), strict=True):
        assert sorted(itertools.chain(*parts[1:])) == sorted(parts[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("kind", "size"), [("fsdp", 3), ("hsdp", 4)])
def test_the_noise_of_shards_is_the_same_bit_for_bit(kind: str, size: int, dtype: torch.dtype) -> None:
    work = partial(take_steps, kind, rate=1e-9, expected=10.0, dtype=dtype)
    truth = alone(work)
    for outcome in on_ranks(size, work, known_key=True):
        for found, expected in zip(outcome.value.grads, truth.grads, strict=True):
            assert all(torch.equal(found[name], grad) for name, grad in expected.items())
