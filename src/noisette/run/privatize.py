"""Attach differentially private training to a model and an optimizer of one's own."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from torch.optim.optimizer import Optimizer

from noisette.accounting import Accountant, Ledger, PldAccountant
from noisette.accounting.budget import RunParameters, check_delta, check_numbers
from noisette.accounting.calibrate import cheapest, least_noisy, schedule, with_releases
from noisette.accounting.events import check_events
from noisette.accounting.filters import accountant_beside
from noisette.core.release import GradientBound, parts_of
from noisette.core.steps import check_free
from noisette.errors import plain
from noisette.ranks import AnyRanks, ranks_of
from noisette.run.loading import Collate
from noisette.run.private import PrivateRun, check_no_batch_norm, check_optimizer, ledger_on_ranks
from noisette.run.sampling import Poisson, Sampling, Users, releases


def privatize(
    bound: GradientBound,
    optimizer: Optimizer,
    dataset: Any,
    *,
    expected_batch_size: float,
    sampling_rate: float | None = None,
    steps: int | None = None,
    public_size: int | None = None,
    epochs: float | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    accountant: Accountant | None = None,
    ledger: Ledger | Path | str | None = None,
    allow_large_delta: bool = False,
    sampling: Sampling = Poisson(),  # noqa: B008 - it is frozen
    users: Users | None = None,
    collate_fn: Collate | None = None,
    ranks: AnyRanks | None = None,
    declaration: str = "",
) -> PrivateRun:
    """Attach differentially private training to your own model and optimizer.

    Every public quantity is declared: none is computed from the length of ``dataset``.

    Args:
        bound: what bounds one example, such as ``PerExampleClip(model, max_grad_norm=1.0)``.
        optimizer: any optimizer of the same trainable parameters whose ``step`` takes no closure.
        dataset: a tensor, a tuple or dictionary of tensors with the records on their first axis, a list of records,
            :class:`PaddedBuckets`, or anything with ``len`` and indexing, such as a ``datasets.Dataset``. A frame of
            pandas is a dictionary of columns, in a tuple such as ``(frame, series)`` a matrix. :class:`OwnRecords`
            where each of several processes holds others.
        expected_batch_size: the constant that the noised sum is divided by, in examples.
        sampling_rate: probability in (0, 1] that a record is in a step's batch.
        steps: number of logical steps.
        public_size: declared number of records, to give ``sampling_rate`` as expected batch size over it.
        epochs: passes over the declared size, to give ``steps``.
        epsilon: the privacy budget of this run together with everything in ``ledger``, with ``delta``; the noise is
            calibrated to it.
        noise_multiplier: standard deviation of the noise in units of the sensitivity, instead of ``epsilon``. With
            both, the steps must fit in the budget.
        delta: probability with which the bound on epsilon may fail; below one over the declared size.
        accountant: computes epsilon; ``PldAccountant()`` unless given.
        ledger: records every release; in memory unless given. A path is opened for the run, and closed with it.
        allow_large_delta: accept a delta of one over the declared size or more.
        sampling: how batches are drawn: ``Poisson()``, ``TruncatedPoisson(largest_batch)``, ``BallsInBins()`` or
            ``CyclicPoisson(bands)``.
        users: the user of each record, ``Users(ids, most_records)``, for a guarantee that covers all records of a user.
            Records or users are sampled, whichever costs less at the same expected batch size.
        collate_fn: makes a microbatch of a list of records, as for a ``DataLoader``; the function of torch unless
            given. It sees one record at a time, and what it returns is joined by rows.
        ranks: the processes that share the work: all of torch's default process group unless given, or this process
            alone where there is none. Each one calls this function with the same arguments.
        declaration: a name that the run shares with other releases in the ledger whose parameters were all fixed before
            the first of them, with nothing else released before the last. They are composed by ``accountant``; beside
            others, by whose results this run may have been chosen, a Rényi filter keeps the budget, with more noise.

    Guarantee: (epsilon, delta) differential privacy for adding or removing one record, or with ``users`` all records of
    one user, of all weights and optimizer states of the run together, for a loss as :class:`noisette.Loss` says, and
    however the runs and charges of the ledger were chosen by each other's results if the budget was fixed before. The
    key stays in the processes of the run; these and the network between them are one trusted party.
    Source: Abadi et al. 2016, algorithm 1.

    Raises:
        ValueError: numbers outside their domain, contradicting or missing; all problems are listed. A record has no
            user, the users are not those of the records, or the ledger has a guarantee of another kind.
        PrivacyError: the model has batch norm in training mode, the optimizer does not fit the bound or is stepped by
            another run that is not finished, the budget does not pay for the steps with the given noise, the data set
            has more records than truncated batches are paid for, or the ranks differ. What one rank raises, all raise.
    """
    numbers: dict[str, Any] = {
        "expected_batch_size": expected_batch_size,
        "sampling_rate": sampling_rate,
        "steps": steps,
        "public_size": public_size,
        "epochs": epochs,
        "epsilon": epsilon,
        "noise_multiplier": noise_multiplier,
        "delta": delta,
    }
    numbers = {name: plain(value) for name, value in numbers.items()}
    expected_batch_size, sampling_rate, steps, public_size, epochs, epsilon, noise_multiplier, delta = numbers.values()
    with ExitStack() as owned:
        ranks = ranks_of(ranks, owned)
        with ranks.unanimous("the declarations of the run"):
            check_numbers(**numbers)
            sampling_rate, steps = schedule(expected_batch_size, sampling_rate, steps, public_size, epochs)
            possible = releases(
                sampling,
                users,
                sampling_rate,
                expected_batch_size=expected_batch_size,
                public_size=public_size,
                parts=parts_of(bound.pop_sums()),
            )
            one_over_size = sampling_rate / expected_batch_size
            if users is not None and users.public_users is not None:
                one_over_size = 1 / users.public_users
            check_delta(delta, one_over_size, allow_large_delta)
            check_no_batch_norm(bound.model)
            check_optimizer(optimizer, bound)
            check_free(optimizer, bound)
        declared = {**numbers, "sampling": repr(sampling), "users": users and users.most_records}
        ranks.check_equal("the declarations of the run", lambda: declared)
        accountant = accountant if accountant is not None else PldAccountant()
        ledger, own = ledger_on_ranks(ledger, ranks)
        if own is not None:
            owned.callback(own.close)

        def terms() -> dict[str, Any]:
            if noise_multiplier is None:
                assert epsilon is not None, "checked above"
                assert delta is not None, "checked above"
                before = ledger.declarations
                by = accountant_beside(before, accountant, declaration=declaration, epsilon=epsilon, delta=delta)
                event = least_noisy(
                    possible, epsilon=epsilon, delta=delta, steps=steps, accountant=by, prior_events=ledger.events
                )
            else:
                events = [release(noise_multiplier) for release in possible]
                event = cheapest(events, delta=delta or one_over_size / 10, steps=steps, accountant=accountant)
            check_events(with_releases(ledger.events, event, 1))
            parameters = RunParameters(
                event, float(expected_batch_size), steps, delta=delta, epsilon=epsilon, declaration=declaration
            )
            return parameters.facts()

        with ledger.lock:  # what other threads spend is either calibrated for here, or seen at the first reservation
            make = partial(
                PrivateRun,
                bound,
                optimizer,
                dataset,
                terms=RunParameters.of(ranks.from_first("the noise of the run", terms)),
                accountant=accountant,
                ledger=ledger,
                users=users,
                collate_fn=collate_fn,
            )
            run = PrivateRun.on_ranks(make, ranks, owned)
    if noise_multiplier is not None:
        try:
            run.check_budget()
        except BaseException:
            run.close()
            raise
    return run
