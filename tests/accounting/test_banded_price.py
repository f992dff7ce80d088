"""What banded steps cost: rounds of Poisson batches by another library, whole rounds, and ledgers that add up.

Proof that a round of b steps costs one Poisson batch of rate b q. C is lower triangular with b diagonals and first
column c of norm at most 1. In units of the clipping norm, step t has the sum x_t, and all releases are C^-1 (C x + z
xi), which is post-processing of the rows of C x + z xi. A record of group g with gradient v takes part in the steps g,
g + b, ... alone. In such a step s it adds c_k v to row s + k for k < b; no other of its steps adds to these rows. Given
all releases before s, they are what others add (a function of earlier releases and of others' draws) plus B (c_0 v,
..., c_(b-1) v) + z xi, where B is 1 with probability b q, and 0 otherwise. So a round is one Poisson-subsampled
Gaussian release of sensitivity 1, chosen adaptively, and n steps are at most ceil(n / b) of them. That holds for every
g, hence for one drawn independently of the data (joint convexity), and for removal. A restart shortens columns. Several
sums of a step have joint norm 1. Clipping norms may follow released values, since x is in their units.
"""

import json
import math

import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant as LibraryAccountant

from noisette import BandedGaussian, Ledger
from noisette.accounting import PldAccountant
from noisette.accounting.ledger import RecordedRun
from noisette.accounting.registry import ACCOUNTANTS

STEP = BandedGaussian(sampling_rate=0.02, noise_multiplier=1.2, bands=4)


@pytest.mark.parametrize(
    ("rate", "noise", "bands", "steps"),
    [(0.02, 1.2, 4, 100), (0.02, 1.2, 4, 97), (0.01, 0.9, 16, 500), (0.25, 3.0, 4, 40), (1 / 49, 2.0, 49, 100)],
)
def test_rounds_cost_what_another_library_computes(rate, noise, bands, steps):
    one = dp_event.GaussianDpEvent(noise)
    if (of_round := rate * bands) < 1 - 1e-9:
        one = dp_event.PoissonSampledDpEvent(of_round, one)
    library = LibraryAccountant(value_discretization_interval=1e-4)
    library.compose(dp_event.SelfComposedDpEvent(one, math.ceil(steps / bands)))
    ours = PldAccountant().compose({BandedGaussian(rate, noise, bands): steps}).epsilon(delta=1e-6)
    assert ours == pytest.approx(library.get_epsilon(1e-6), rel=2e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "moments"])
def test_a_round_that_was_begun_is_paid_for_as_a_whole(accountant):
    cost = [ACCOUNTANTS[accountant].compose({STEP: steps}).epsilon(delta=1e-6) for steps in range(1, 10)]
    assert cost[0] == cost[3] < cost[4] == cost[7] < cost[8]


def test_two_runs_that_stopped_within_a_round_pay_for_two(tmp_path):
    """Three steps and one step of other runs are two rounds begun, though they are four steps."""
    path = tmp_path / "ledger.jsonl"
    for used in (3, 1):
        with Ledger(path) as ledger:
            run = RecordedRun()
            ledger.reserve(STEP, 8, run=run)
            for _ in range(used):
                ledger.commit(run=run)
            ledger.release(run=run)  # the second round was not begun
    assert Ledger.read(path).events == {STEP: 8}


@pytest.mark.parametrize("call", ["reserve", "charge"])
@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_ledger_takes_whole_rounds_alone(tmp_path, call, steps):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        with pytest.raises(ValueError, match=f"got {steps} steps; record {4 if steps < 5 else 8}"):
            getattr(ledger, call)(STEP, steps)
        getattr(ledger, call)(STEP, 8)
        with pytest.raises(ValueError, match="rounds of 4 steps"):
            getattr(ledger, call)(STEP, steps)
        assert ledger.events == {STEP: 8}


def test_a_line_with_a_part_of_a_round_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    with monkeypatch.context() as patch:
        for module in ("ledger", "ledger_file"):
            patch.setattr(f"noisette.accounting.{module}.check_whole_rounds", lambda event, steps: None)
        with Ledger(path) as ledger:
            ledger.reserve(STEP, 3)
    assert json.loads(path.read_text())["bands"] == 4
    with pytest.raises(ValueError, match="line 1"):
        Ledger.read(path)
