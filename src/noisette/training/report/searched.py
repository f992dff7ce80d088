"""What may be published about a search beside its best run: the space and the price, never the other runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from noisette.training.report.numbers import percent, upward


@dataclass(frozen=True)
class SearchFacts:
    """A search in public numbers: declared, or about the run that was chosen.

    ``over`` has the distribution of each searched setting in words, ``settings`` its values in the chosen run.
    ``mean`` and ``shape`` are those of the distribution of the number of runs, whose median and ninth decile are
    ``median`` and ``at_most``; ``none`` is the chance of no run. ``epsilon_of_all`` is what it would cost to release
    all of ``compared`` runs with the same noise.
    ``score`` is that of the chosen run, with noise of the standard deviation ``score_deviation``, where it was computed
    on ``held_out``, the share of the records that were not trained on; all are ``None`` where the test figures decided.

    Guarantee: no field depends on a run that was not chosen, nor on the number of runs that was drawn.
    """

    over: Mapping[str, str]
    settings: Mapping[str, float | int | bool | str | None]
    mean: float
    shape: str
    median: int
    at_most: int
    none: float
    compared: int
    epsilon_of_all: float
    score: float | None
    held_out: float | None
    score_deviation: float | None

    @property
    def runs(self) -> str:
        """The distribution of the number of runs, in words."""
        never = f", none with probability {self.none:.2g}" if self.none else ""
        return (
            f"a secret random number: {self.mean:g} on average, half of the time at most {self.median}, "
            f"9 times in 10 at most {self.at_most}{never} (shape {self.shape})"
        )


def shown(value: float | int | bool | str | None) -> str:
    """A setting as the command line takes it.

    >>> shown(0.5), shown(True), shown(None)
    ('0.5', 'true', 'none')
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows_of_search(search: SearchFacts) -> list[tuple[str, str]]:
    """Name and value of each fact, for tables: first the settings that were found."""
    return [
        *((name, f"{shown(value)}, from {search.over[name]}") for name, value in search.settings.items()),
        ("runs", search.runs),
        ("score", score_of(search)),
        ("to release all", f"{search.compared} runs would cost epsilon {upward(search.epsilon_of_all)}"),
    ]


def score_of(search: SearchFacts) -> str:
    """The score of the chosen run, and on what it was computed."""
    if search.held_out is None:
        return "on public test examples"
    assert search.score is not None, "a run was chosen"
    assert search.score_deviation is not None, "the score has noise"
    over = ", which is above 100 % where there are more records than declared" if search.score > 1 else ""
    return (
        f"{percent(search.score)} of the declared number held out{over}. This is {percent(search.held_out)} of the "
        f"records, which were not trained on; the noise has the standard deviation {percent(search.score_deviation)}"
    )


def advice(search: SearchFacts, epsilon: float) -> str:
    """That releasing all runs would be cheaper, "" where it would not be."""
    if search.epsilon_of_all > epsilon:
        return ""
    return (
        f"Releasing all of {search.compared} runs with the same noise would cost epsilon "
        f"{upward(search.epsilon_of_all)}, no more than this search of {search.mean:g} runs on average, "
        f"{upward(epsilon)}: rather train that many times with noisette train, and choose afterwards as you like."
    )


def paragraph(search: SearchFacts, unit: str) -> str:
    """What the guarantee covers of a search."""
    return (
        "Search: this run is the best of a search, and epsilon is the price of the whole search. The other runs were "
        f"discarded: their weights, settings and scores left no file. The number of runs is {search.runs}. It was "
        "drawn from a key that was never written down. The guarantee does not hold against somebody who learns how "
        "long the search took, or saw it at work: that tells about the number of runs, and so about the "
        f"{unit} in question."
    )


def how_chosen(search: SearchFacts) -> str:
    """By what the run was chosen, and what that says about its figures."""
    drawn = ", ".join(f"{name} from {text}" for name, text in search.over.items())
    said = f"Settings: drawn for each run anew, independently of all records: {drawn}. The run was chosen by "
    if search.held_out is None:
        return (
            f"{said}its result on the test examples, which are taken to be public and have no guarantee. So the test "
            "figures of this run are those of the best of several, and better than on new examples."
        )
    return (
        f"{said}the number of its right answers on records that were held out with probability {search.held_out:g} and "
        "not trained on, each answer from 0 to 1, with Gaussian noise, over a public number. Its release is part of "
        "each run in the ledger, and these records have the same guarantee as the others."
    )
