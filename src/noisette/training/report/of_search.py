"""What may be published about the best run of a search: the facts of a run, at the price of the whole search."""

from __future__ import annotations

from dataclasses import replace

from noisette.accounting import Ledger
from noisette.accounting.number_of_runs import NumberOfRuns
from noisette.accounting.serialization import facts_of as event_facts
from noisette.training.report.facts import Facts, facts_of
from noisette.training.report.numbers import power_of_ten, upward
from noisette.training.report.searched import SearchFacts, advice
from noisette.training.search import Found, HeldOutScore, Search


def facts_of_search(search: Search, found: Found, ledger: Ledger) -> Facts:
    """What may be published about the best run of a search.

    The course of the run is left out: what was known of it at an earlier step costs the whole search as well. So is its
    time: a first run takes longer than later ones.

    Args:
        search: with its price.
        found: its best run.
        ledger: to which the search was charged.
    """
    outcome = found.outcome
    test = getattr(outcome.test, "accuracy", None)
    return replace(
        facts_of(outcome),
        epsilon=search.epsilon,
        released=tuple((event_facts(event), times) for event, times in ledger.events.items()),
        ledger_head=ledger.head,
        points=(),
        seconds=None,
        seconds_per_step=None,
        test_accuracy=test,
        search=_search_facts(search, found),
    )


def announcement(search: Search) -> list[str]:
    """What a search is about to do and to cost, in lines for the operator."""
    facts, privacy = _search_facts(search), search.recipe.privacy
    (_, steps), *_ = search.event.run
    lines = [
        f"A search over {search.space}",
        f"It costs epsilon {upward(search.epsilon)} at delta {power_of_ten(privacy.delta)}, also if it is stopped.",
        f"Its runs have {steps:,} steps with noise multiplier {search.noise_multiplier:.4g}.",
        f"Their number is {facts.runs}.",
        advice(facts, search.epsilon),
    ]
    return [line for line in lines if line]


def _search_facts(search: Search, found: Found | None = None) -> SearchFacts:
    number, score = NumberOfRuns.of(search.event), search.score
    held_out = deviation = None
    if isinstance(score, HeldOutScore):
        held_out, deviation = score.share, score.noise_multiplier / score.expected_records(search.declared_size)
    return SearchFacts(
        over={name: str(dimension) for name, dimension in search.space.dimensions.items()},
        settings=search.space.settings_of(found.recipe) if found else {},
        mean=search.event.mean,
        shape=f"{search.event.shape:g}",
        median=number.quantile(0.5),
        at_most=number.quantile(0.9),
        none=number.probability(0),
        compared=search.comparison.runs,
        epsilon_of_all=search.comparison.release_all,
        score=found.score if found and held_out else None,
        held_out=held_out,
        score_deviation=deviation,
    )
