"""Faults of privacy costs: a privacy loss that is too small, one direction that is forgotten, a record counted once."""

from __future__ import annotations

import pytest

from noisette.accounting import FixedSizeGaussian, GroupPrivacy, PoissonGaussian, balls_in_bins
from noisette.accounting import privacy_loss as of_event
from noisette.accounting.events import Sampled
from noisette.accounting.privacy_loss import Directions, Mixture, TruncatedCase
from planted import Mutant, Patch

_LOSSES = "accounting/test_privacy_loss.py"
_OF_EVENT = "noisette.accounting.privacy_loss"


def replaced(target: str, value: object) -> Patch:
    def plant(patch: pytest.MonkeyPatch) -> None:
        of_event.directions_of.cache_clear()
        patch.setattr(target, value)

    return plant


def to_the_lower_end(patch: pytest.MonkeyPatch) -> None:
    whole = of_event.on_points
    of_event.directions_of.cache_clear()
    patch.setattr(f"{_OF_EVENT}.on_points", lambda points, masses, shares: whole(points, masses, 0 * shares))


def one_direction(mixture: Mixture, tail: float) -> Directions:
    added, _ = _mixture_directions(mixture, tail)
    return Directions(added, added)


def one_norm(event: FixedSizeGaussian, tail: float) -> Directions:
    mixture = Mixture.of(PoissonGaussian(event.batch_size / event.size, event.noise_multiplier))
    return of_event.replaced_directions(mixture, tail)


def one_record(event: Sampled | GroupPrivacy, tail: float) -> Directions:
    return _sampled(event.event if isinstance(event, GroupPrivacy) else event, tail)


def with_most_records(patch: pytest.MonkeyPatch) -> None:
    whole = TruncatedCase.of
    of_event.directions_of.cache_clear()
    patch.setattr(TruncatedCase, "of", lambda event, fewest, most: whole(event, event.most_records, event.most_records))


def one_bin_more(bins: int, noise_multiplier: float, tail: float) -> Directions:
    return _pass_directions(bins + 1, noise_multiplier, tail)


_pass_directions = balls_in_bins.pass_directions
_mixture_directions, _sampled = of_event.mixture_directions, of_event._sampled

MUTANTS = [
    Mutant(
        "losses are rounded downwards",
        "every epsilon is a little too small",
        to_the_lower_end,
        (f"{_LOSSES}::test_one_release_with_laplace_noise", f"{_LOSSES}::test_two_sampled_releases"),
    ),
    Mutant(
        "only added records are priced",
        "removing a record costs more than stated",
        replaced(f"{_OF_EVENT}.mixture_directions", one_direction),
        (f"{_LOSSES}::test_two_sampled_releases",),
    ),
    Mutant(
        "infinite losses are forgotten",
        "a declared delta costs nothing",
        replaced("noisette.accounting.pld.Composition.lost", 0.0),
        (f"{_LOSSES}::test_amounts_compose_as_randomised_responses",),
    ),
    Mutant(
        "a replaced record moves the sum by one norm",
        "batches of fixed size cost half",
        replaced(f"{_OF_EVENT}._replaced", one_norm),
        (f"{_LOSSES}::test_one_batch_of_fixed_size",),
    ),
    Mutant(
        "a truncated batch is never full",
        "the record that was exchanged is not counted",
        replaced(f"{_OF_EVENT}._full", lambda event, others: 0.0),
        (f"{_LOSSES}::test_a_truncated_batch_costs_less_where_it_leaves_the_record_out",),
    ),
    Mutant(
        "truncated batches always have the most records",
        "a data set with fewer records leaves the record out less often than stated",
        with_most_records,
        (f"{_LOSSES}::test_no_truncated_batch_of_any_number_of_records_costs_more",),
    ),
    Mutant(
        "a replaced record is an added one",
        "the sum of a Poisson batch moves twice as far as stated",
        replaced(f"{_OF_EVENT}.exchanged_directions", of_event.mixture_directions),
        (f"{_LOSSES}::test_a_replaced_record_of_poisson_batches",),
    ),
    Mutant(
        "a pass has a bin more",
        "a record hides among more batches than there are",
        replaced("noisette.accounting.balls_in_bins.pass_directions", one_bin_more),
        ("accounting/test_balls_in_bins.py::test_passes_cost_what_another_library_computes",),
    ),
    Mutant(
        "a user has one record",
        "all others of the user's records are not counted",
        replaced(f"{_OF_EVENT}._sampled", one_record),
        (f"{_LOSSES}::test_users_are_groups_and_one_record_is_a_record",),
    ),
]
