"""Two and three runs on one ledger, in every order of their steps, never cost more together than the budget of each."""

import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from noisette import Ledger, PerExampleClip, PrivacyError, PrivateRun, RdpAccountant, noise_multiplier_for
from noisette.accounting import Accountant, Event, Events, Gaussian
from noisette.accounting.filters import RenyiFilter, RenyiOdometer
from noisette.accounting.ledger import RecordedRun
from noisette.accounting.rdp import RdpCurve
from small_loop import square, start

NUMBERS = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
BUDGET, DELTA, STEPS = 3.0, 1e-3, 4


COMPOSED: dict[frozenset[tuple[Event, int]], RdpCurve] = {}


class Remembering(RdpAccountant):
    def compose(self, events: Events) -> RdpCurve:
        key = frozenset(events.items())
        if key not in COMPOSED:
            COMPOSED[key] = super().compose(events)
        return COMPOSED[key]


ACCOUNTANT = Remembering()


@lru_cache
def noise_for(epsilon: float) -> float:
    with begin(Ledger(), epsilon=epsilon) as run:
        return run.noise_multiplier


def parts() -> tuple[PerExampleClip, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return PerExampleClip(model, 1.0), torch.optim.SGD(model.parameters(), lr=0.1)


def begin(ledger: Ledger, *, steps: int = STEPS, epsilon: float | None = BUDGET, **options: Any) -> PrivateRun:
    clip, optimizer = parts()
    declared = {"expected_batch_size": 10, "noise_multiplier": None, "delta": DELTA, "allow_large_delta": True}
    declared |= options | {"steps": steps, "epsilon": epsilon, "ledger": ledger, "accountant": ACCOUNTANT}
    return start(clip.model, NUMBERS, optimizer=optimizer, clip=clip, **declared)


def go_on(folder: Path, ledger: Ledger) -> PrivateRun:
    return PrivateRun.resume(folder, *parts(), NUMBERS, accountant=ACCOUNTANT, ledger=ledger)


def begin_for(ledger: Ledger, epsilon: float) -> PrivateRun:
    return begin(ledger, epsilon=epsilon, noise_multiplier=noise_for(epsilon))


def steps_of(run: PrivateRun) -> Iterator[None]:
    for batch in run.batches():
        for x in batch.microbatches(20):
            run.accumulate(square, x)
        run.optimizer.step()
        run.optimizer.zero_grad()
        yield


def price(ledger: Ledger) -> float:
    """Epsilon of all that is in the ledger, computed from its events and nothing else."""
    events: dict[Event, int] = ledger.events
    return ACCOUNTANT.compose(events).epsilon(delta=DELTA) if events else 0.0


def is_taken(going: Iterator[None]) -> bool:
    """Whether a run takes another step: not at its end, and not where the ledger leaves no budget for it."""
    try:
        next(going)
    except StopIteration:
        return False
    except PrivacyError as refusal:
        if "beyond the budget" not in str(refusal):
            raise
        return False
    return True


def take_turns(runs: list[PrivateRun], order: tuple[int, ...], ledger: Ledger) -> list[int]:
    """Take steps of these runs in this order until each is at its end or refused; how many each has taken."""
    going, taken = [steps_of(run) for run in runs], [0] * len(runs)
    for which in (*order, *(list(range(len(runs))) * STEPS)):
        taken[which] += is_taken(going[which])
        assert price(ledger) <= BUDGET * (1 + 1e-9)
    return taken


def orders(runs: int, steps: int) -> list[tuple[int, ...]]:
    return sorted(set(itertools.permutations([run for run in range(runs) for _ in range(steps)])))


@pytest.mark.parametrize("order", orders(2, 3), ids=str)
def test_two_runs_of_equal_terms_keep_the_budget_in_every_order(order):
    ledger = Ledger()
    with begin_for(ledger, BUDGET) as one, begin_for(ledger, BUDGET) as two:
        assert one.event == two.event
        taken = take_turns([one, two], order, ledger)
        assert taken[order[0]] == STEPS, "the first comes to its end"
        assert taken[1 - order[0]] == 0, "and leaves nothing to the other"
    assert ledger.events == {one.event: STEPS}


def test_closing_one_run_keeps_the_lease_of_another(tmp_path):
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        given = {"epsilon": None, "noise_multiplier": 2.0, "steps": 100}
        one, two = begin(ledger, **given), begin(ledger, **given)
        first, second = steps_of(one), steps_of(two)
        next(first)
        next(second)
        assert ledger.events == {one.event: 10}
        one.close()
        assert ledger.events == {two.event: 6}
        for _ in range(4):
            next(second)
        assert ledger.events == {two.event: 6}
        two.close()
    assert Ledger.read(path).committed == 6


def test_runs_in_threads_keep_the_budget_of_each(tmp_path):
    highest = []

    def work(ledger: Ledger) -> None:
        try:
            with begin(ledger, steps=20) as run:
                going = steps_of(run)
                while is_taken(going):
                    highest.append(price(ledger))
                ledger.charge(Gaussian(60.0), run=RecordedRun())
        except (ValueError, PrivacyError) as refusal:
            if not re.search("budget|epsilon", str(refusal)):
                raise

    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        with ThreadPoolExecutor() as threads:
            for done in [threads.submit(work, ledger) for _ in range(3)]:
                done.result()
        assert max(highest) <= BUDGET * (1 + 1e-9)
    assert Ledger.read(tmp_path / "ledger.jsonl").paid == ledger.paid


def test_a_short_run_that_crashes_goes_on_for_the_steps_that_are_left(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        run = begin(ledger, steps=29, epsilon=None, noise_multiplier=9.0)
        going = steps_of(run)
        for _ in range(10):
            next(going)
            run.save(tmp_path / "saved")
        run.end()
    with Ledger(tmp_path / "ledger.jsonl") as ledger, go_on(tmp_path / "saved", ledger) as again:
        assert again.steps_left >= 17
        assert len(list(steps_of(again))) == 19


def take_all(run: PrivateRun) -> PrivateRun:
    with run:
        list(steps_of(run))
    return run


def noise_beside(prior: Events, accountant: Accountant = ACCOUNTANT, epsilon: float = BUDGET) -> float:
    """The noise of a run in the rest of the budget, composed with what came before by this accountant."""
    terms = {"epsilon": epsilon, "delta": DELTA, "sampling_rate": 0.5, "steps": STEPS}
    return noise_multiplier_for(**terms, accountant=accountant, prior_events=prior)


def test_a_second_run_has_the_noise_of_the_filter_and_costs_the_budget():
    ledger = Ledger()
    first = take_all(begin(ledger, epsilon=BUDGET / 2))
    assert first.epsilon(delta=DELTA) <= BUDGET / 2
    second = begin(ledger)
    assert second.noise_multiplier == noise_beside({first.event: STEPS}, RenyiFilter(BUDGET, DELTA))
    assert second.noise_multiplier > 1.02 * noise_beside({first.event: STEPS})
    take_all(second)
    assert len(ledger.declarations) == 2
    assert price(ledger) < second.epsilon(delta=DELTA) == BUDGET
    assert RenyiOdometer().compose(ledger.events).epsilon(delta=DELTA) > BUDGET


def test_runs_that_were_declared_together_are_composed():
    ledger = Ledger()
    ledger.charge(Gaussian(6.0), declaration="all")
    first = take_all(begin(ledger, epsilon=BUDGET / 2, declaration="all"))
    assert first.noise_multiplier == noise_beside({Gaussian(6.0): 1}, epsilon=BUDGET / 2)
    second = take_all(begin(ledger, declaration="all", noise_multiplier=20.0))
    assert len(ledger.declarations) == 1
    assert second.epsilon(delta=DELTA) == pytest.approx(price(ledger), rel=1e-9)


def test_after_a_run_with_the_whole_budget_there_is_no_other_even_if_it_was_stopped():
    ledger = Ledger()
    with begin(ledger) as run:
        next(steps_of(run))
    assert run.epsilon(delta=DELTA) < BUDGET / 1.5
    with pytest.raises(ValueError, match=r"a declaration of 4 × .* choose a larger epsilon than 3"):
        begin(ledger)


@pytest.mark.parametrize("order", orders(2, 3)[::6], ids=str)
def test_runs_that_go_on_after_a_crash_keep_the_budget_in_every_order(order, tmp_path):
    """Each is saved after its first step, taken one step further and dropped; what it had reserved is lost."""
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        runs = [begin_for(ledger, BUDGET), begin_for(ledger, BUDGET)]
        for number, run in enumerate(runs):
            going = steps_of(run)
            if is_taken(going):
                run.save(tmp_path / str(number))
                is_taken(going)
            run.end()
        again = []
        for number, run in enumerate(runs):
            if (tmp_path / str(number) / "checkpoint.safetensors").exists():
                again.append(go_on(tmp_path / str(number), ledger))
                assert again[-1].terms == run.terms
                assert (again[-1].steps_taken, again[-1].steps_lost) == (1, 1)
        assert again
        take_turns(again, tuple(which % len(again) for which in order), ledger)
        for run in again:
            run.close()
        assert price(ledger) <= BUDGET * (1 + 1e-9)


def test_a_second_run_with_the_noise_of_composition_is_refused():
    ledger = Ledger()
    first = take_all(begin(ledger, epsilon=BUDGET / 2))
    with pytest.raises(PrivacyError, match="beyond the budget of 3"):
        begin(ledger, noise_multiplier=noise_beside({first.event: STEPS}))
