"""A run of a model whose parameters are sharded: the batches, sums, noise and costs of a single process."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest
import torch

from fsdp_loop import refused, restored, run_out_once, spoilt, start_and_save, take_steps
from noisette.run import checkpoint as checkpoint_file
from process_group import alone, on_ranks
from ranks_loop import Course


def same(courses: list[Course], truth: Course) -> None:
    for course in courses:
        for found, expected in zip(course.grads, truth.grads, strict=True):
            for name, grad in expected.items():
                assert float((found[name] - grad).abs().max()) < 1e-15, name


@pytest.mark.parametrize(
    ("kind", "size", "settings"),
    [("fsdp", 2, {}), ("hsdp", 4, {}), ("kept", 2, {}), ("fsdp", 3, {"rate": 0.03}), ("hsdp", 4, {"bands": 3})],
    ids=str,
)
def test_a_run_is_that_of_one_process(kind: str, size: int, settings: dict[str, float]) -> None:
    work = partial(take_steps, kind, **settings)
    truth = alone(work)
    courses = [outcome.value for outcome in on_ranks(size, work, known_key=True)]
    same(courses, truth)
    assert {(course.epsilon, course.events) for course in courses} == {(truth.epsilon, truth.events)}
    for parts in zip(truth.indices, *(course.indices for course in courses), strict=True):
        assert sorted(itertools.chain(*parts[1:])) == sorted(parts[0])


@pytest.mark.parametrize(
    ("kind", "size", "bands", "dtype"),
    [("fsdp", 3, None, torch.float32), ("hsdp", 4, None, torch.float64), ("fsdp", 2, 3, torch.float64)],
    ids=str,
)
def test_the_noise_of_shards_is_the_same_bit_for_bit(
    kind: str, size: int, bands: int | None, dtype: torch.dtype
) -> None:
    work = partial(take_steps, kind, rate=1e-9, expected=10.0, dtype=dtype, bands=bands)
    truth = alone(work)
    for outcome in on_ranks(size, work, known_key=True):
        for found, expected in zip(outcome.value.grads, truth.grads, strict=True):
            assert all(torch.equal(found[name], grad) for name, grad in expected.items())


@pytest.mark.filterwarnings("ignore:the loss of")
def test_records_without_a_finite_gradient_count_for_nothing() -> None:
    same([outcome.value for outcome in on_ranks(3, spoilt, 4, known_key=True)], alone(spoilt, 4))


def test_memory_that_runs_out_on_one_rank_takes_the_microbatch_again_on_all() -> None:
    same([outcome.value for outcome in on_ranks(2, run_out_once, known_key=True)], alone(run_out_once))


@pytest.mark.parametrize("size", [1, 3])
def test_a_run_goes_on_with_another_number_of_ranks(size: int, tmp_path: Path) -> None:
    assert [outcome.value for outcome in on_ranks(2, start_and_save, tmp_path, 2)] == [2, 2]
    content = checkpoint_file.read(tmp_path / "checkpoint")["learned"]
    results = [alone(restored, tmp_path)] if size == 1 else [o.value for o in on_ranks(size, restored, tmp_path)]
    for found in results:
        for name, weight in content["weights"].items():
            assert name not in found or torch.equal(found[name], weight)
        for k, values in content["state"]["state"].items():
            assert all(torch.equal(found[f"{k} {name}"], value) for name, value in values.items())


@pytest.mark.parametrize(
    ("what", "way_out"),
    [("mixed precision", "autocast"), ("FSDP1", "use fully_shard instead"), ("tensor parallel", "not supported yet")],
)
def test_what_cannot_be_done_is_refused_with_the_remedy(what: str, way_out: str) -> None:
    for outcome in on_ranks(2, refused, what):
        assert outcome.error == "PrivacyError"
        assert way_out in outcome.text
