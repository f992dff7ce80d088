"""Faults of random numbers within a batch: others know their seeds, or records share them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType

import numpy as np
import pytest
from noisette.clipping.shared_numbers import SharedNumbers
from noisette.run.seal import Seal

from noisette._internal import random_state
from noisette.clipping import shared_numbers
from noisette.core.batches import Batch
from noisette.core.steps import DpSgdRun
from noisette.nn import weight_noise
from noisette.run import model_snapshot, seal
from noisette.sampling import loading as fetching
from planted import Mutant
from ranks_faults import on_each_rank

_GENERATORS = "redteam/test_generator_state.py"
_FETCHING = "sampling/test_fetching.py"
_SHARED = f"{_GENERATORS}::test_records_of_a_microbatch_share_no_number"
_HELD = f"{_GENERATORS}::test_records_share_no_number_of_a_generator_in_the_model"


def known_seeds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal, "seed_secretly", random_state.reseed_later)
    patch.setattr(seal, "seed_secretly_again", lambda generators: None)


def seeds_of_the_loop(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seal, "before_random_numbers", lambda self: None)


def trusting_backward(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seal, "warn_of_known_numbers", lambda self: None)


def loaded_by_a_thread(patch: pytest.MonkeyPatch) -> None:
    """The release does not wait for records that a thread loads."""
    patch.setattr(fetching, "Rows", object)


def short_seeds(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(random_state, "_SECRET_BITS", 31)


def worker_seeds_of_torch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetching, "seed_worker_secretly", None)


def noise_of_each_microbatch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal, "hold_noise", lambda model, seed: lambda: None)


def noise_of_each_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seal, "torch_seeded", lambda seed: nullcontext())


def seeds_of_the_data_set(patch: pytest.MonkeyPatch) -> None:
    """What the data set seeds while it reads records stays."""
    whole = DpSgdRun._batch_of

    def batch_of(self: DpSgdRun, drawn: np.ndarray) -> Batch:
        batch = whole(self, drawn)
        batch.before_use = lambda: None
        return batch

    patch.setattr(DpSgdRun, "_batch_of", batch_of)


def direct_generators_alone(patch: pytest.MonkeyPatch) -> None:
    """Generators behind methods and functions that the model holds keep their seeds."""

    def direct(*values: object, known: Iterable[object]) -> list[object]:
        return [value for value in values if isinstance(value, random_state.GENERATORS)]

    patch.setattr(model_snapshot, "generators_of", direct)


def generators_behind_functions_alone(patch: pytest.MonkeyPatch) -> None:
    """Generators in objects of other packages than the module's keep their seeds."""
    search = random_state.generators_of

    def behind_functions(*values: object, known: Iterable[object]) -> list[object]:
        may_draw = *random_state.GENERATORS, MethodType, BuiltinFunctionType, FunctionType, partial
        return search(*(value for value in values if isinstance(value, may_draw)), known=known)

    patch.setattr(model_snapshot, "generators_of", behind_functions)


def methods_without_their_functions(patch: pytest.MonkeyPatch) -> None:
    whole = random_state._held_by
    patch.setattr(
        random_state, "_held_by", lambda value: [value.__self__] if isinstance(value, MethodType) else whole(value)
    )


def containers_of_the_library_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model_snapshot, "_OPEN", ())


def noise_from_around(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(weight_noise._SetNoisy, "hold", lambda self, module: None)


def unwatched(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SharedNumbers, "refused", lambda self, loss: nullcontext())


def global_generators_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_numbers, "_held_by", lambda loss, state: [])


def generators_of_the_first_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shared_numbers._Known, "is_of", lambda self, objects: True)


MUTANTS = [
    Mutant(
        "random numbers within a batch have known seeds",
        "one record more gives those behind it other masks and views, which others can compute",
        known_seeds,
        (f"{_GENERATORS}::test_who_knows_the_seeds_does_not_know_the_masks",),
    ),
    Mutant(
        "a loop that seeds torch within a batch makes its seeds known",
        "masks by a known seed, in a loop or beside another run",
        seeds_of_the_loop,
        (
            f"{_GENERATORS}::test_a_loop_that_seeds_each_microbatch_has_secret_masks_all_the_same",
            f"{_GENERATORS}::test_the_release_of_another_run_within_a_batch_leaves_secret_seeds",
        ),
    ),
    Mutant(
        "nobody warns of losses for backward that are computed by a known seed",
        "masks by a known seed, where the caller computes the losses",
        trusting_backward,
        (f"{_GENERATORS}::test_backward_warns_of_masks_by_a_known_seed",),
    ),
    Mutant(
        "what a data set seeds stays where losses are computed by the caller",
        "masks by the seed of a record",
        seeds_of_the_data_set,
        (f"{_GENERATORS}::test_a_data_set_that_seeds_generators_leaves_secret_ones",),
        seen_as=(UserWarning,),
    ),
    Mutant(
        "a loss has the generators of an earlier one of the same code",
        "numbers of a generator that is not watched, shared by the records of a microbatch",
        generators_of_the_first_loss,
        (f"{_GENERATORS}::test_losses_of_one_code_have_generators_of_their_own",),
    ),
    Mutant(
        "generators behind methods that the model holds keep their seeds",
        "numbers that others know, and a state that tells the batch",
        direct_generators_alone,
        (f"{_GENERATORS}::test_generators_that_a_model_holds_indirectly_have_secret_seeds",),
    ),
    Mutant(
        "generators in objects of other packages keep their seeds",
        "numbers that others know, and a state that tells the batch",
        generators_behind_functions_alone,
        (f"{_GENERATORS}::test_generators_that_a_model_holds_indirectly_have_secret_seeds",),
    ),
    Mutant(
        "a method hides the function that it is made of",
        "numbers that others know",
        methods_without_their_functions,
        (f"{_GENERATORS}::test_generators_that_a_model_holds_indirectly_have_secret_seeds",),
    ),
    Mutant(
        "containers of Python's library keep what a batch leaves",
        "records are published with the model",
        containers_of_the_library_stay,
        (
            "redteam/test_published_state.py::test_what_a_forward_pass_writes_is_put_back",
            "redteam/test_published_state.py::test_a_queue_is_put_back",
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
        short_seeds,
        ("_internal/test_random_state.py::test_secret_seeds_are_too_many_to_be_tried",),
    ),
    Mutant(
        "loading processes have the seeds of torch's loader",
        "32 bits, which can be tried",
        worker_seeds_of_torch,
        (f"{_FETCHING}::test_processes_have_seeds_that_are_too_many_to_be_tried",),
    ),
    Mutant(
        "weight noise is drawn for each microbatch",
        "which records share a draw depends on how many come before them",
        noise_of_each_microbatch,
        ("nn/test_weight_noise.py::test_all_microbatches_of_a_private_batch_have_one_draw",),
    ),
    Mutant(
        "weight noise may be drawn by a module around the model",
        "other noise for each microbatch",
        noise_from_around,
        ("nn/test_weight_noise.py::test_noise_that_is_drawn_around_the_model_of_a_run_is_refused",),
    ),
    Mutant(
        "each rank draws its own weight noise",
        "which records share a draw depends on how many come before them",
        on_each_rank(noise_of_each_rank),
        ("redteam/test_ranks_apart.py::test_ranks_have_one_noise_on_the_weights",),
    ),
    Mutant(
        "numbers of Python and NumPy are drawn once for a microbatch",
        "which records share them depends on how many come before them",
        unwatched,
        (_SHARED, _HELD),
    ),
    Mutant(
        "generators that the loss or the model holds are not watched",
        "the same by numbers of their own",
        global_generators_alone,
        (_SHARED, _HELD),
    ),
]
