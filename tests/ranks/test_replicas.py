"""A run on several ranks with a whole model each: the batches, sums, noise and costs of a single process."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from process_group import alone, on_ranks
from ranks_loop import Course, take_steps


def differences(course: Course, truth: Course) -> list[float]:
    return [
        float((found[name] - grad).abs().max())
        for found, expected in zip(course.grads, truth.grads, strict=True)
        for name, grad in expected.items()
    ]


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("plain", {}),
        ("ddp", {"way": "backward"}),
        ("ddp", {}),
        ("plain", {"adaptive": True}),
    ],
    ids=str,
)
def test_a_run_is_that_of_one_process(kind: str, settings: dict[str, object], size: int) -> None:
    work = partial(take_steps, kind, **settings)
    truth = alone(work)
    courses = [outcome.value for outcome in on_ranks(size, work, known_key=True)]
    for course in courses:
        assert max(differences(course, truth)) < 1e-15
        assert (course.epsilon, course.events) == (truth.epsilon, truth.events)
        assert all(torch.equal(course.weights[name], weight) for name, weight in courses[0].weights.items())
    for parts in zip(truth.indices, *(course.indices for course in courses), strict=True):
        assert sorted(itertools.chain(*parts[1:])) == sorted(parts[0])
        assert max(map(len, parts[1:])) - min(map(len, parts[1:])) <= 1
