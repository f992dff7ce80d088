"""Faults of the batches, and public numbers that follow private ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from noisette.core.batches import Batch, PoissonSampler
from noisette.core.steps import DpSgd
from noisette.run.private import PrivateRun
from planted import Mutant, Patch

_LAW = "core/test_poisson.py::test_law"
_RELEASED = "run/test_private_run.py::test_gradient_is_the_clipped_sum_and_noise_over_the_constant"


def _coins(sampler: PoissonSampler, step: int) -> np.random.Generator:
    seed = np.empty(4, dtype=np.uint64)
    sampler.key.fill(seed, purpose="sampling", name="", step=step)
    return np.random.default_rng([int(word) for word in seed])


def shuffled(self: PoissonSampler, *, step: int) -> np.ndarray:
    """Parts of equal size of a permutation, a new one in each epoch."""
    parts = max(1, round(1 / self.sampling_rate))
    epoch, part = divmod(step, parts)
    return np.sort(np.array_split(_coins(self, epoch).permutation(self.size), parts)[part])


def of_fixed_size(self: PoissonSampler, *, step: int) -> np.ndarray:
    return np.sort(_coins(self, step).choice(self.size, round(self.size * self.sampling_rate), replace=False))


def drawn(change: Any) -> Patch:
    return lambda patch: patch.setattr(PoissonSampler, "indices", change)


_indices = PoissonSampler.indices


def same_in_each_step(self: PoissonSampler, *, step: int) -> np.ndarray:
    return _indices(self, step=0)


def of_the_global_generator(self: PoissonSampler, *, step: int) -> np.ndarray:
    return np.flatnonzero(np.random.random(self.size) < self.sampling_rate)


def truncated(self: PoissonSampler, *, step: int) -> np.ndarray:
    """Batches far above the mean are cut to it."""
    return _indices(self, step=step)[: round(self.size * self.sampling_rate)]


def more_often(self: PoissonSampler, *, step: int) -> np.ndarray:
    """Records come a twentieth more often than is paid for."""
    more = PoissonSampler(size=self.size, sampling_rate=min(1.0, 1.05 * self.sampling_rate), key=self.key)
    return _indices(more, step=step)


def rounded_up(self: PoissonSampler, *, step: int) -> np.ndarray:
    """Coins are so coarse that small rates become larger."""
    coarse = PoissonSampler(size=self.size, sampling_rate=max(2.0**-16, self.sampling_rate), key=self.key)
    return _indices(coarse, step=step)


def cut_by_pieces(patch: pytest.MonkeyPatch) -> None:
    """The last piece of a batch is dropped where it is not full."""
    whole = Batch.microbatches

    def pieces(self: Batch, size: Any) -> Iterator[Any]:
        if isinstance(size, int) and len(self.indices) > size:
            self.indices = self.indices[: len(self.indices) // size * size]
        return whole(self, size)

    patch.setattr(Batch, "microbatches", pieces)


def empty_skipped(patch: pytest.MonkeyPatch) -> None:
    whole = DpSgd._batches

    def batches(self: DpSgd, *loading: Any) -> Iterator[Batch]:
        for batch in whole(self, *loading):
            if len(batch.indices):
                yield batch
            else:
                self._batch = None
                self.steps_taken += 1

    patch.setattr(DpSgd, "_batches", batches)


def divisor_of_the_batch(patch: pytest.MonkeyPatch) -> None:
    whole = DpSgd._before_step

    def before_step(self: DpSgd, *args: Any) -> None:
        if self._batch is not None:
            self._release.expected_batch_size = float(max(1, len(self._batch.indices)))
        whole(self, *args)

    patch.setattr(DpSgd, "_before_step", before_step)


def from_the_number_of_records(which: str) -> Patch:
    """The divisor, or the sampling rate, follows from the length of the data set."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        whole = PrivateRun.__init__

        def init(self: PrivateRun, bound: Any, optimizer: Any, dataset: Any, *, terms: Any, **declared: Any) -> None:
            records = len(dataset[0])
            if which == "divisor":
                terms = replace(terms, expected_batch_size=max(1.0, terms.event.sampling_rate * records))
            else:
                rate = min(1.0, terms.expected_batch_size / max(1, records))
                terms = replace(terms, event=replace(terms.event, sampling_rate=rate))
            whole(self, bound, optimizer, dataset, terms=terms, **declared)

        patch.setattr(PrivateRun, "__init__", init)

    return plant


MUTANTS = [
    Mutant("shuffled batches", "several times the epsilon that is stated", drawn(shuffled), (_LAW,)),
    Mutant("batches of fixed size", "another mechanism than the one that is priced", drawn(of_fixed_size), (_LAW,)),
    Mutant(
        "same batch in each step",
        "a record takes part in all steps or none",
        drawn(same_in_each_step),
        (_LAW, "core/test_poisson.py::test_batches_are_a_function_of_key_and_step"),
    ),
    Mutant("records drawn more often", "a rate above the one that is priced", drawn(more_often), (_LAW,)),
    Mutant(
        "small sampling rates rounded up",
        "a rate above the one that is priced, where no count shows it",
        drawn(rounded_up),
        ("assurance/test_edges.py::test_a_small_rate_is_not_rounded_up",),
    ),
    Mutant("large batches cut", "the presence of one record decides over another", drawn(truncated), (_LAW,)),
    Mutant(
        "batches by the global seed",
        "who knows the seed knows the batches",
        drawn(of_the_global_generator),
        ("core/test_poisson.py::test_seeds_do_not_reach_it",),
    ),
    Mutant(
        "last piece dropped",
        "the size of a batch decides which records count",
        cut_by_pieces,
        ("run/test_private_run.py::test_pieces_change_nothing", "core/test_poisson.py::test_no_batch_is_cut"),
    ),
    Mutant(
        "empty batches skipped",
        "the number of noised steps tells how many batches were empty",
        empty_skipped,
        ("run/test_private_run.py::test_empty_batch_is_a_step_of_noise_alone",),
    ),
    Mutant(
        "divisor of the batch",
        "the size of each batch is published",
        divisor_of_the_batch,
        (_RELEASED, "assurance/test_neighbour_replay.py::test_one_record_changes_nothing_but_the_noised_sums"),
    ),
    Mutant(
        "divisor from the number of records",
        "the number of records is published",
        from_the_number_of_records("divisor"),
        ("run/test_private_run.py::test_length_of_the_data_set_changes_nothing_public",),
    ),
    Mutant(
        "sampling rate from the number of records",
        "the rate that is priced is another one",
        from_the_number_of_records("rate"),
        ("assurance/test_neighbour_replay.py::test_one_record_changes_nothing_but_the_noised_sums",),
    ),
]
