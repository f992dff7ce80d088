"""Repeat a private run a secret number of times and release the best result alone."""

import math
from collections.abc import Callable
from typing import TypeVar

from noisette.accounting import Ledger, RepeatAndSelect
from noisette.accounting.events import Event
from noisette.accounting.repeated_runs import NumberOfRuns
from noisette.core.noise import SecretKey
from noisette.errors import PrivacyError
from noisette.ranks.launch import refuse_several_processes

Result = TypeVar("Result")


def repeat_and_select(
    ledger: Ledger,
    search: RepeatAndSelect,
    train_once: Callable[[Ledger], Result],
    score: Callable[[Result], float],
    *,
    fallback: Result,
) -> Result:
    """Charge a search, repeat its run as often as is drawn in secret, and return the result with the highest score.

    The search is charged durably before the number of runs is drawn, so that after a crash no number is exchanged for a
    better one. Of equal scores the first counts.

    Args:
        ledger: the ledger of the data set.
        search: the event to charge, such as that of :func:`noisette.accounting.repeated_runs.least_noise_search`.
        train_once: makes one run and returns its result, with fresh randomness in each call. Its releases go into the
            ledger that it is given (``privatize(..., ledger=...)``), which is in memory: the search has paid for it.
        score: the score of a result; NaN counts as the lowest. It may read the result and public data; a score on
            private records is released and charged by the run itself.
        fallback: what is returned if no run is drawn, which an infinite ``shape`` (Poisson) allows, or if every run
            fails. It must not depend on private records: new weights, or ``None``.

    Guarantee: what is returned costs ``search`` and nothing more, if each call of ``train_once`` is one run of that
    event whose result depends on private records through its releases alone. A run that raises an ``Exception`` counts
    as the lowest score. The time that the search takes is not hidden: it tells about how many runs there were; do not
    let others observe it, nor what ``train_once`` prints or writes to disk.

    Source: Papernot and Steinke 2022, "Hyperparameter Tuning with Rényi Differential Privacy", Algorithm 1.

    Raises:
        PrivacyError: several processes make the search, the ledger cannot record it, or a run released more than the
            search has paid for. Nothing is returned, and the search is spent.
        OSError: the ledger cannot be written; nothing was run.
    """
    refuse_several_processes("repeat_and_select")
    ledger.charge(search)
    best, highest = fallback, -math.inf
    paid: dict[Event, int] = dict(search.run)
    for _ in range(NumberOfRuns.of(search).draw(SecretKey())):
        of_run = Ledger(dataset=ledger.dataset)
        try:
            result = train_once(of_run)
            reached = float(score(result))
        except Exception:
            result, reached = fallback, -math.inf
        excess = [f"{n} × {event!r}" for event, n in of_run.events.items() if n > paid.get(event, 0)]
        if excess:
            raise PrivacyError(
                f"a run of the search released {' and '.join(excess)}, but the search has paid for "
                f"{' and '.join(f'{times} × {event!r}' for event, times in search.run)} in each run; nothing is "
                "returned, and the search is spent. Charge a search whose run holds all releases of train_once"
            )
        if reached > highest:
            best, highest = result, reached
    return best
