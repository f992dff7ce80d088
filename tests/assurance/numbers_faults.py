"""Faults of random numbers within a batch: others know their seeds, or records share them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from noisette.core import steps
from noisette.core.steps import DpSgd
from noisette.run import loading as fetching
from noisette.run import per_example
from noisette.run import private as held_noise
from planted import Mutant
from ranks_faults import on_each_rank

_GENERATORS = "redteam/test_published_state.py"
_FETCHING = "run/test_fetching.py"


def known_seeds(patch: pytest.MonkeyPatch) -> None:
    def seed() -> int:
        torch.manual_seed(torch.randint(2**31, ()).item())
        return torch.initial_seed()

    patch.setattr(steps, "seed_secretly", seed)


def loaded_by_a_thread(patch: pytest.MonkeyPatch) -> None:
    """The release does not wait for records that a thread loads."""
    patch.setattr(fetching, "Rows", object)


def draws_of_each_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(held_noise, "seed_torch", lambda seed: None)


def draws_of_each_microbatch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.run.private.held_noise", lambda model: None)


MUTANTS = [
    Mutant(
        "random numbers within a batch have known seeds",
        "one record more gives those behind it other masks and views, which others can compute",
        known_seeds,
        (f"{_GENERATORS}::test_who_knows_the_seed_of_a_program_does_not_know_the_masks",),
    ),
    Mutant(
        "a loop that seeds torch within a batch makes its seeds known",
        "masks by a known seed, in a loop, of a data set, or beside another run",
        lambda patch: patch.setattr(DpSgd, "_keep_seed_secret", lambda self: None),
        (
            f"{_GENERATORS}::test_a_loop_that_seeds_each_microbatch_has_secret_masks_all_the_same",
            f"{_GENERATORS}::test_a_data_set_that_seeds_torch_leaves_secret_masks",
            f"{_GENERATORS}::test_the_release_of_another_run_within_a_batch_leaves_secret_seeds",
        ),
    ),
    Mutant(
        "a thread loads records whose code draws",
        "views by a known seed, and generators that tell how many records were loaded",
        loaded_by_a_thread,
        (
            f"{_FETCHING}::test_nothing_is_drawn_ahead_between_steps",
            f"{_FETCHING}::test_records_are_read_by_the_thread_of_the_loop",
        ),
    ),
    Mutant(
        "secret seeds have 31 bits",
        "all of them can be tried",
        lambda patch: patch.setattr(steps, "_SECRET_BITS", 31),
        (f"{_GENERATORS}::test_secret_seeds_are_too_many_to_be_tried",),
    ),
    Mutant(
        "loading processes have the seeds of torch's loader",
        "32 bits, which can be tried",
        lambda patch: patch.setattr(fetching, "seed_worker_secretly", None),
        (f"{_FETCHING}::test_processes_have_seeds_that_are_too_many_to_be_tried",),
    ),
    Mutant(
        "statistics of a public batch are drawn for each microbatch",
        "which records share a draw depends on how many come before them",
        on_each_rank(draws_of_each_microbatch),
        ("redteam/test_ranks_apart.py::test_ranks_have_one_draw_for_the_statistics_of_a_public_batch",),
    ),
    Mutant(
        "each rank draws its own statistics of a public batch",
        "which records share a draw depends on how many come before them",
        on_each_rank(draws_of_each_rank),
        ("redteam/test_ranks_apart.py::test_ranks_have_one_draw_for_the_statistics_of_a_public_batch",),
    ),
    Mutant(
        "numbers of Python and NumPy are drawn once for a microbatch",
        "which records share them depends on how many come before them",
        lambda patch: patch.setattr(per_example, "shared_numbers_refused", nullcontext),
        (f"{_GENERATORS}::test_records_of_a_microbatch_share_no_number_of_other_generators",),
    ),
]
