"""A run on several ranks with a whole model each: the batches, sums, noise and costs of a single process."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from noisette import Alone, PrivacyError
from noisette.ranks import ranks_of
from process_group import alone, on_ranks
from ranks_loop import DIFFERENCES, Course, components, differ, drawn_words, take_steps


def differences(course: Course, truth: Course) -> list[float]:
    return [
        float((found[name] - grad).abs().max())
        for found, expected in zip(course.grads, truth.grads, strict=True)
        for name, grad in expected.items()
    ]


@pytest.mark.parametrize(
    ("kind", "settings", "size"),
    [
        ("plain", {}, 2),
        ("ddp", {}, 4),
        ("plain", {"adaptive": True}, 2),
        ("plain", {"rate": 0.02}, 4),
        ("plain", {"spoilt": True}, 2),
        ("plain", {"bands": 3}, 4),
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


@pytest.mark.parametrize(("dtype", "bands"), [(torch.float32, 3), (torch.float64, None)], ids=str)
def test_the_noise_of_empty_batches_is_the_same_bit_for_bit(dtype: torch.dtype, bands: int | None) -> None:
    work = partial(take_steps, rate=1e-9, dtype=dtype, expected=10.0, bands=bands)
    truth = alone(work)
    for outcome in on_ranks(3, work, known_key=True):
        assert not any(outcome.value.indices)
        for found, expected in zip(outcome.value.grads, truth.grads, strict=True):
            assert all(torch.equal(found[name], grad) for name, grad in expected.items())


@pytest.mark.parametrize("difference", list(DIFFERENCES))
def test_ranks_that_differ_are_refused_by_name(difference: str) -> None:
    for outcome in on_ranks(2, differ, difference):
        assert outcome.error == "PrivacyError"
        assert DIFFERENCES[difference] in outcome.text.replace("\n", " ")


@pytest.mark.parametrize("told", [{"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_TASKS": "4"}], ids=str)
def test_without_a_process_group_torchrun_is_refused(told: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PrivacyError, match="init_process_group"):
        ranks_of(None)
    assert isinstance(ranks_of(Alone()), Alone)


def test_each_rank_has_a_key_of_its_own_only_alone() -> None:
    first, second = on_ranks(2, drawn_words)
    assert first.value == second.value
    again, _ = on_ranks(2, drawn_words)
    assert again.value != first.value


@pytest.mark.parametrize("rows", [500, 5000])
def test_principal_components_are_those_of_one_process(rows: int) -> None:
    truth = alone(components, rows)
    assert [outcome.value for outcome in on_ranks(3, components, rows, known_key=True)] == [truth] * 3


def test_ranks_that_hold_other_records_make_the_same_run() -> None:
    truth = alone(take_steps)
    for outcome in on_ranks(3, partial(take_steps, own=0), known_key=True):
        assert max(differences(outcome.value, truth)) < 1e-15


def test_a_record_that_two_ranks_hold_is_refused() -> None:
    for outcome in on_ranks(2, partial(take_steps, own=1)):
        assert outcome.error == "PrivacyError"
        assert "without overlaps" in outcome.text
