"""Faults of noise that is correlated over steps: its matrix, its batches, its rounds, and what is kept of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from noisette.accounting.events import BandedGaussian, PoissonGaussian
from noisette.core.batches import PoissonSampler
from noisette.noise import banded as banded_factor
from noisette.noise.banded import BandedNoise
from noisette.run import sampling as schemes
from noisette.run.private import PrivateRun
from noisette.run.sampling import CyclicPoissonSampler
from planted import Mutant, Patch

_NOISE = "noise/test_banded_noise.py"
_BATCHES = "run/test_cyclic.py"
_PRICE = "accounting/test_banded_price.py"
_RUN = "run/test_banded_run.py"
_AUDIT = "audit/test_attacked_runs.py"


def replaced(owner: Any, name: str, value: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, value)


def poisson(self: CyclicPoissonSampler, *, step: int) -> np.ndarray:
    """Each record by itself at the same rate, whatever its last batch was."""
    return PoissonSampler(self.size, self.rate / self.bands, self.key).indices(step=step)


def by_place(self: CyclicPoissonSampler) -> np.ndarray:
    """Groups of equal sizes: records one after the other in the order of the data set, by how many there are."""
    return np.arange(self.size) * self.bands // max(1, self.size)


def drawn_anew(patch: pytest.MonkeyPatch) -> None:
    """The groups of each round are drawn anew."""
    whole = CyclicPoissonSampler.indices

    def indices(self: CyclicPoissonSampler, *, step: int) -> np.ndarray:
        words = np.empty(self.size, dtype=np.uint64)
        self.key.fill(words, purpose="groups", name="", step=(step - self.first_step) // self.bands)
        vars(self)["_groups"] = words % np.uint64(self.bands)
        return whole(self, step=step)

    patch.setattr(CyclicPoissonSampler, "indices", indices)


def not_from_the_first_step(patch: pytest.MonkeyPatch) -> None:
    """A resumed run goes on in the middle of a round that it did not begin."""
    make = CyclicPoissonSampler
    patch.setattr(schemes, "CyclicPoissonSampler", lambda size, rate, bands, key, first: make(size, rate, bands, key))


def one_band_too_many(patch: pytest.MonkeyPatch) -> None:
    """The last diagonal lies where the record takes part again."""
    whole = BandedNoise.__init__

    def longer(self: BandedNoise, independent: Any, coefficients: Any) -> None:
        whole(self, independent, coefficients)
        self._ratios.append(self._ratios[-1])

    patch.setattr(BandedNoise, "__init__", longer)


def not_normalised(patch: pytest.MonkeyPatch) -> None:
    """The first coefficient is 1, wherever the function was imported."""
    whole = banded_factor.banded_coefficients

    def longer(bands: int, steps: int) -> tuple[float, ...]:
        found = whole(bands, steps)
        return tuple(value / found[0] for value in found)

    for place in ("noisette.noise.banded", "test_banded_noise", "test_banded_run"):
        if module := sys.modules.get(place):
            patch.setattr(module, "banded_coefficients", longer)


def a_third_less(patch: pytest.MonkeyPatch) -> None:
    """As of a matrix whose columns have norm 1.5."""
    whole = BandedNoise.__init__

    def louder(self: BandedNoise, independent: Any, coefficients: Any) -> None:
        whole(self, independent, coefficients)
        self._first *= 1.5

    patch.setattr(BandedNoise, "__init__", louder)


def across_gaps(patch: pytest.MonkeyPatch) -> None:
    """The noise of a release that failed is skipped, so that two batches of a record meet in one band."""
    whole = BandedNoise._correlate

    def correlate(self: BandedNoise, place: Any, noise: Tensor, step: int) -> None:
        if earlier := self._earlier.get(place):
            earlier.step = step - 1
        whole(self, place, noise, step)

    patch.setattr(BandedNoise, "_correlate", correlate)


def added_instead(patch: pytest.MonkeyPatch) -> None:
    """Noise of earlier steps is added and not taken back: the inverse of another matrix."""
    whole = BandedNoise.__init__

    def other(self: BandedNoise, independent: Any, coefficients: Any) -> None:
        whole(self, independent, coefficients)
        self._ratios = [-ratio for ratio in self._ratios]

    patch.setattr(BandedNoise, "__init__", other)


def kept_sums(patch: pytest.MonkeyPatch) -> None:
    """What was released is taken back in later steps, sums and all."""
    whole = BandedNoise.add_

    def add_(self: BandedNoise, tensors: Any, *, step: int, std: float = 1.0, **numbers: Any) -> None:
        whole(self, tensors, step=step, std=std, **numbers)
        for (name, *_), earlier in self._earlier.items():
            if name in tensors and earlier.noises[0].shape == tensors[name].view(-1).shape:
                earlier.noises[0].copy_(tensors[name].view(-1) / std)

    patch.setattr(BandedNoise, "add_", add_)


def of_a_step(rate: Callable[[BandedGaussian], float]) -> Patch:
    made = property(lambda self: PoissonGaussian(rate(self), self.noise_multiplier, self.parts))
    return replaced(BandedGaussian, "of_round", made)


def begun_rounds_are_free(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "noisette.accounting.interface.in_whole_rounds",
        lambda event, times: max(1, times // event.round_length) * event.round_length,
    )


def parts_of_rounds(patch: pytest.MonkeyPatch) -> None:
    for module in ("ledger", "ledger_file"):
        patch.setattr(f"noisette.accounting.{module}.check_whole_rounds", lambda event, steps: None)


def leases_of_steps(patch: pytest.MonkeyPatch) -> None:
    """A run reserves as few steps as it takes."""
    parts_of_rounds(patch)
    patch.setattr("noisette.accounting.ledger.in_whole_rounds", lambda event, steps: steps)


def saved_noise(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint has the noise of earlier steps, with which released sums are read without noise."""
    whole = PrivateRun.save

    def save(self: PrivateRun, folder: Any, extras: Any = None) -> None:
        noise: Any = self._release._noise._noise
        kept = {str(k): list(earlier.noises) for k, earlier in enumerate(noise._earlier.values())}
        whole(self, folder, {**(extras or {}), "noises": kept})

    patch.setattr(PrivateRun, "save", save)


MUTANTS = [
    Mutant(
        "cyclic batches are Poisson batches",
        "a record is in neighbouring batches, whose parts of the matrix are not orthogonal",
        replaced(CyclicPoissonSampler, "indices", poisson),
        (f"{_BATCHES}::test_a_record_is_in_at_most_one_of_so_many_consecutive_batches",),
    ),
    Mutant(
        "every round has groups of its own",
        "a record that was in the last batch of a round is in the first of the next",
        drawn_anew,
        (f"{_BATCHES}::test_a_record_is_in_at_most_one_of_so_many_consecutive_batches",),
    ),
    Mutant(
        "groups follow the order of the data set",
        "one record more moves others to other groups",
        replaced(CyclicPoissonSampler, "_groups", property(by_place)),
        (f"{_BATCHES}::test_a_record_does_not_see_the_others", f"{_BATCHES}::test_another_key_draws_other_groups"),
    ),
    Mutant(
        "a resumed run goes on in the middle of a round",
        "its first batches are of groups whose turn a new matrix does not expect",
        not_from_the_first_step,
        (f"{_RUN}::test_a_resumed_run_begins_a_new_round_within_the_price",),
    ),
    Mutant(
        "one diagonal more than groups",
        "the next batch of a record meets the last diagonal of the one before",
        one_band_too_many,
        (
            f"{_NOISE}::test_noise_is_the_inverse_of_c_times_independent_noise",
            f"{_RUN}::test_a_run_releases_clipped_sums_with_the_noise_of_dense_matrices",
        ),
    ),
    Mutant(
        "columns are not normalised",
        "one record moves all steps together by more than is paid for",
        not_normalised,
        (
            f"{_NOISE}::test_columns_have_norm_one_also_in_single_precision",
            f"{_NOISE}::test_sensitivity_by_brute_force",
        ),
    ),
    Mutant(
        "too little independent noise",
        "one record moves all steps together by more than is paid for",
        a_third_less,
        (
            f"{_NOISE}::test_noise_is_the_inverse_of_c_times_independent_noise",
            f"{_AUDIT}::test_rounds_are_gaussian_mechanisms_and_nothing_more",
        ),
    ),
    Mutant(
        "noise is correlated across a gap",
        "after a release that failed, a record's next batch is one band too near",
        across_gaps,
        (
            f"{_NOISE}::test_after_a_missing_step_the_recursion_starts_anew",
            f"{_RUN}::test_a_release_that_fails_breaks_the_correlation",
        ),
    ),
    Mutant(
        "earlier noise is added",
        "the weights keep more noise than without a correlation",
        added_instead,
        (f"{_NOISE}::test_noise_is_the_inverse_of_c_times_independent_noise",),
    ),
    Mutant(
        "earlier releases are taken back with their noise",
        "what a step releases depends on the records of the steps before",
        kept_sums,
        (
            f"{_NOISE}::test_noise_is_the_inverse_of_c_times_independent_noise",
            f"{_RUN}::test_a_run_releases_clipped_sums_with_the_noise_of_dense_matrices",
        ),
    ),
    Mutant(
        "a round costs as much as one of its steps",
        "records of a group are in its batches several times as often as is paid for",
        of_a_step(lambda event: event.sampling_rate),
        (f"{_PRICE}::test_rounds_cost_what_another_library_computes",),
    ),
    Mutant(
        "a round that was begun is free",
        "its batches are released and not paid for",
        begun_rounds_are_free,
        (f"{_PRICE}::test_a_round_that_was_begun_is_paid_for_as_a_whole",),
    ),
    Mutant(
        "a ledger takes parts of rounds",
        "the parts of two runs look like one round",
        parts_of_rounds,
        (f"{_PRICE}::test_a_ledger_takes_whole_rounds_alone",),
    ),
    Mutant(
        "a run reserves parts of rounds",
        "runs that stopped within a round pay for one together",
        leases_of_steps,
        (f"{_RUN}::test_a_run_that_is_closed_within_a_round_has_paid_for_it", f"{_RUN}::test_two_runs_share_a_budget"),
    ),
    Mutant(
        "a checkpoint holds earlier noise",
        "who reads it subtracts the noise from what was released",
        saved_noise,
        (f"{_RUN}::test_no_noise_is_saved",),
    ),
]
