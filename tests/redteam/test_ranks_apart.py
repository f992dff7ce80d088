"""Ranks that differ, which would move a sum by more than its bound or noise it with another one; and harmless loops."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import ranks_attacks
from process_group import alone, assert_refused, on_ranks
from ranks_attacks import DIFFERENT, PATIENCE
from ranks_loop import STEPS, differences, in_small_buckets, take_steps

DIFFERING = [pytest.param(named, work, id=work.__name__) for named, works in DIFFERENT.items() for work in works]


@pytest.mark.parametrize(("named", "work"), DIFFERING)
def test_ranks_that_differ_release_nothing(named: str, work: Callable[[], None]) -> None:
    assert_refused(on_ranks(2, work), named)


def test_ranks_go_on_from_one_checkpoint(tmp_path: Path) -> None:
    assert_refused(on_ranks(2, ranks_attacks.another_checkpoint, tmp_path), "checkpoint")


def test_ranks_have_one_draw_for_the_statistics_of_a_public_batch() -> None:
    """Which records a rank computes depends on the others: with noises of its own, one more moves those behind it."""
    first, second = (outcome.value for outcome in on_ranks(2, ranks_attacks.statistics_of_batches))
    assert (first, len(first)) == (second, STEPS)
    assert len({str(noise) for noise in first}) == STEPS


def test_sums_of_many_values_go_in_buckets() -> None:
    """With buckets smaller than a tensor, the noise of empty batches is that of a single process all the same."""
    truth = alone(partial(take_steps, rate=1e-9, expected=10.0))
    for outcome in on_ranks(3, partial(in_small_buckets, rate=1e-9, expected=10.0), known_key=True):
        assert max(differences(outcome.value, truth)) == 0


def test_an_error_in_a_release_keeps_nobody_waiting() -> None:
    for outcome in on_ranks(2, ranks_attacks.error_in_a_release):
        assert outcome.value < PATIENCE


def test_harmless_loops_train() -> None:
    for outcome in on_ranks(2, ranks_attacks.all_harmless):
        assert all(taken and taken % STEPS == 0 for taken in outcome.value.values()), outcome.value


def test_an_error_that_all_ranks_meet_together_does_not_end_the_run(tmp_path: Path) -> None:
    for outcome in on_ranks(2, ranks_attacks.an_error_that_all_survive, tmp_path):
        assert outcome.value == STEPS
