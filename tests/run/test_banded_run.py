"""Runs with banded noise on cyclic batches: what they release, record, keep, and do after a crash."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from noisette import AdaptiveClip, BandedGaussian, CyclicPoisson, Ledger, PldAccountant, PrivateRun, privatize
from noisette import PerExampleClip as Clip
from noisette.accounting.filters import RenyiOdometer
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.core.release import ROUNDING, shares_of
from noisette.noise.banded import banded_coefficients
from oracle import clipped_sum
from small_loop import square, take_steps

SIZE, STEPS, BANDS, RATE, NOISE = 200, 22, 4, 0.1, 1.3
SECRET = bytes(range(32))
X = torch.randn(SIZE, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
STEP = BandedGaussian(RATE, NOISE, BANDS)
STD = NOISE * 0.5 * (1 + ROUNDING) / 20  # of independent noise on an element
DECLARED: dict[str, Any] = {"sampling_rate": RATE, "expected_batch_size": 20, "steps": STEPS}
DECLARED |= {"noise_multiplier": NOISE, "sampling": CyclicPoisson(BANDS)}


def parts(clipping: Any = None) -> tuple[Clip, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    bound = Clip(model, 0.5) if clipping is None else Clip(model, clipping=clipping)
    return bound, torch.optim.SGD(model.parameters(), lr=0.2)


def start(folder: Path | None = None, dataset: Any = X, clipping: Any = None, **changes: Any) -> PrivateRun:
    ledger = Ledger(folder / "ledger.jsonl", dataset="mine") if folder else Ledger()
    return privatize(*parts(clipping), dataset, ledger=ledger, **DECLARED | changes)


def correlated(names: dict[str, int], steps: int, horizon: int, first: int = 0) -> list[dict[str, np.ndarray]]:
    """C^-1 times the independent noise of these steps, by dense matrices."""
    c = banded_coefficients(BANDS, horizon)
    dense = np.sum([np.diag(np.full(steps - k, value), -k) for k, value in enumerate(c)], axis=0)
    found: list[dict[str, np.ndarray]] = [{} for _ in range(steps)]
    for name, numel in names.items():
        rows = torch.zeros(steps, numel, dtype=torch.float64)
        for step in range(steps):
            GaussianNoise(SecretKey(SECRET)).add_({name: rows[step]}, step=first + step)
        for step, row in enumerate(np.linalg.solve(dense, rows.numpy())):
            found[step][name] = row
    return found


@pytest.mark.usefixtures("known_key")
@pytest.mark.parametrize("clipping", [None, AdaptiveClip(0.5)], ids=["flat", "adaptive"])
def test_a_run_releases_clipped_sums_with_the_noise_of_dense_matrices(clipping):
    with start(clipping=clipping) as run:
        truth = correlated({name: p.numel() for name, p in run.bound.parameters.items()}, STEPS, STEPS)
        for step, batch in enumerate(run.batches()):
            pending = run.bound.pop_sums()
            shares = {part.name: (part, share) for part, share in zip(pending, shares_of(pending), strict=True)}
            part, share = shares["gradient"]
            std = run.noise_multiplier * part.bound * (1 + ROUNDING) / np.sqrt(share)
            sums = clipped_sum(run.bound.model, square, (X[batch.indices],), part.bound).sums
            for x in batch.microbatches(7):
                run.accumulate(square, x)
            run.optimizer.step()
            for name, p in run.bound.parameters.items():
                expected = (sums[name].numpy().reshape(-1) + std * truth[step][name]) / 20
                np.testing.assert_allclose(p.grad.numpy().reshape(-1), expected, atol=2e-5)


def test_a_run_that_is_closed_within_a_round_has_paid_for_it(tmp_path):
    with start(tmp_path, steps=200) as run:  # reserves twelve steps at a time
        take_steps(run, square, steps=5)
        assert run.ledger.events == {STEP: 12}
    assert (run.ledger.events, run.ledger.committed) == ({STEP: 8}, 5)
    run.ledger.close()


def resume(folder: Path, **changes: Any) -> PrivateRun:
    return PrivateRun.resume(folder, *parts(), X, **changes)


@pytest.mark.parametrize("taken", [3, 4, 5])
def test_a_resumed_run_begins_a_new_round_within_the_price(taken, tmp_path):
    with start(tmp_path, noise_multiplier=None, epsilon=2.0, delta=1e-3) as run:
        take_steps(run, square, steps=taken)
        run.save(tmp_path)
    run.ledger.close()
    with resume(tmp_path) as again:
        begun = -(-taken // BANDS) * BANDS
        assert (again.steps_taken, again.steps_spent, again.steps_left) == (taken, begun, STEPS - begun)
        groups = again._sampler._groups  # pyright: ignore
        drawn = [step.indices for step in take_steps(again, square)]
        assert [set(groups[indices]) for indices in drawn[:8]] == [{step % BANDS} for step in range(8)]
        assert (len(drawn), again.ledger.events) == (STEPS - begun, {again.event: 24})
        assert again.epsilon(delta=1e-3) <= 2.0
    again.ledger.close()


def test_no_noise_is_saved(tmp_path):
    with start(tmp_path) as run:
        take_steps(run, square, steps=6)
        run.save(tmp_path)
        kept = [value for earlier in run._release._noise._add_.__self__._earlier.values() for value in earlier.noises]  # pyright: ignore
        assert len(kept) == 3 * 4
        files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
        for secret in (*(value.numpy().tobytes()[:8] for value in kept), b"_earlier", b"noises"):
            assert secret not in files
    run.ledger.close()


def test_a_release_that_fails_breaks_the_correlation(monkeypatch):
    """The step counts, its noise is gone, and the next step takes back none of the noise before it."""
    with start(dataset=X[:0]) as run:
        take_steps(run, square, steps=3)
        whole = GaussianNoise.add_
        with monkeypatch.context() as patch:
            patch.setattr(GaussianNoise, "add_", None)
            with pytest.raises(TypeError):
                take_steps(run, square, steps=1)
        seen = []

        def keeps(self: GaussianNoise, tensors: Any, **numbers: Any) -> None:
            whole(self, tensors, **numbers)
            seen.append({name: tensor.clone() for name, tensor in tensors.items()})

        monkeypatch.setattr(GaussianNoise, "add_", keeps)
        ((_, released),) = take_steps(run, square, steps=1)
        for name, grad in released.items():
            torch.testing.assert_close(grad.view(-1), seen[-1][name] * STD, rtol=1e-6, atol=0)
        assert run.steps_taken == 5


def test_two_runs_share_a_budget():
    ledger, costs = Ledger(), []
    for _ in range(2):
        with privatize(*parts(), X, ledger=ledger, **DECLARED) as run:
            take_steps(run, square, steps=5)
            costs.append(run.epsilon(delta=1e-3))
    assert ledger.events == {STEP: 16}
    assert costs[0] == pytest.approx(PldAccountant().compose({STEP: 8}).epsilon(delta=1e-3), rel=1e-3)
    assert costs[1] == pytest.approx(RenyiOdometer().compose({STEP: 16}).epsilon(delta=1e-3), rel=1e-3)


def test_crashes_never_hide_a_round(tmp_path):
    """Processes that end without closing their run, after so many steps each; the last one takes all that is left."""
    declared = {"steps": 61, "noise_multiplier": None, "epsilon": 2.0, "delta": 1e-3}
    rounds, event = 0, None
    for number, end in enumerate((5, 1, 9, 10**6)):
        run = start(tmp_path, **declared) if number == 0 else resume(tmp_path)
        run.save(tmp_path)
        taken = 0
        while taken < end and run.steps_left:
            taken += len(take_steps(run, square, steps=min(8, end - taken)))
            run.save(tmp_path)
        rounds, event = rounds + -(-taken // BANDS), run.event
        run.end()
        run.ledger.close()
    paid = Ledger.read(tmp_path / "ledger.jsonl").events
    assert rounds * BANDS <= paid[event] <= 64
    assert PldAccountant().compose(paid).epsilon(delta=1e-3) <= 2.0
