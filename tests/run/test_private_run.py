"""The joiner: what it refuses, what it releases, what it costs, and what it leaves behind."""

import copy
import gc
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from model_cases import Forward
from noisette import Gaussian, Ledger, MomentsAccountant, PrivacyError, PrivateRun, RdpAccountant, close_run, engines
from noisette.core.batches import Batch
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.core.release import ROUNDING
from noisette.run.loading import JointBatch
from noisette.run.sampling import CyclicPoisson, Poisson
from oracle import clipped_sum
from small_loop import loss, take_steps
from small_loop import start as start_half

SECRET = bytes(range(32))
SIZE = 60
X, Y = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(1)), torch.arange(SIZE) % 3
pytestmark = pytest.mark.usefixtures("known_key")


def small() -> Any:
    parts = {"hidden": nn.Linear(5, 6), "out": nn.Linear(6, 3), "unused": nn.Parameter(torch.zeros(2))}
    return Forward(lambda m, x: m.out(torch.tanh(m.hidden(x))), **parts)


start = partial(start_half, dataset=(X, Y), expected_batch_size=30, clip={"max_grad_norm": 0.7})


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def expected_noise(model: nn.Module, step: int) -> dict[str, Tensor]:
    noise = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    GaussianNoise(SecretKey(SECRET)).add_(noise, step=step, std=0.7 * (1 + ROUNDING) / 30)
    return noise


def test_gradient_is_the_clipped_sum_and_noise_over_the_constant():
    model = small()
    with start(model) as run:
        for step, batch in enumerate(run.batches()):
            truth = clipped_sum(model, loss, (X[batch.indices], Y[batch.indices]), 0.7)
            for x, y in batch.microbatches(7):
                run.accumulate(loss, x, y)
            assert all(p.grad is None for p in model.parameters())
            before = copy.deepcopy(model)
            run.optimizer.step()
            for name, z in expected_noise(model, step).items():
                grad = dict(model.named_parameters())[name].grad
                torch.testing.assert_close(grad, (truth.sums[name].float() / 30 + z), rtol=1e-4, atol=1e-6)
                moved = dict(before.named_parameters())[name] - dict(model.named_parameters())[name]
                torch.testing.assert_close(moved.detach(), 0.1 * grad, rtol=1e-3, atol=1e-6)
            run.optimizer.zero_grad()
    assert run.steps_taken == 3


def test_pieces_change_nothing():
    first = small()
    other = copy.deepcopy(first)
    for model, size in ((first, 64), (other, 5)):
        with start(model) as run:
            take_steps(run, size=size)
    for p, q in zip(first.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_empty_batch_is_a_step_of_noise_alone():
    model = small()
    with start(model, sampling_rate=1e-300, steps=10) as run:
        for number, step in enumerate(take_steps(run)):
            assert len(step.indices) == 0
            for name, z in expected_noise(model, number).items():
                torch.testing.assert_close(step.grads[name], z)
    assert run.steps_taken == run.ledger.committed == 10


@pytest.mark.parametrize(
    "engine", [engines.BookKeeping(), engines.ReweightGP(), engines.PerExampleLoop()], ids=lambda e: type(e).__name__
)
def test_record_that_is_not_a_number_changes_nothing_at_all(engine):
    """Not the weights, not a step, not an error; at every rate it is as if the record were not there."""
    bad = X.clone()
    bad[7] = float("nan")
    weights = []
    for x, dropped in ((bad, SIZE), (X, 7)):
        torch.manual_seed(3)
        model = small()
        kept = torch.arange(SIZE) != dropped
        with start(model, dataset=(x, Y, kept), clip={"max_grad_norm": 0.7, "engine": engine}) as run:
            take_steps(run, lambda model, x, y, keep: loss(model, x, y) * keep, size=100)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert weights[0].isfinite().all()
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)


def test_two_runs_never_share_noise(monkeypatch):
    monkeypatch.setattr("noisette.ranks.launch.SecretKey", SecretKey)
    grads = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        with start(small(), sampling_rate=1e-300, steps=1) as run:
            grads.append(take_steps(run)[0].grads["hidden.weight"])
    assert not torch.equal(*grads)


PROBLEMS = {
    "both rate and size": ({"public_size": 60}, "exactly one of sampling_rate and public_size"),
    "no budget": ({"noise_multiplier": None}, "epsilon, noise_multiplier or both"),
    "epsilon without delta": ({"noise_multiplier": None, "epsilon": 1.0}, "epsilon needs delta"),
    "noise zero": ({"noise_multiplier": 0}, "noise_multiplier"),
    "delta above 1/size": ({"delta": 0.02}, "one over the declared size"),
    "rate above one": ({"sampling_rate": 1.5}, "sampling_rate"),
    "a name for an accountant": ({"accountant": "rdp"}, r"such as noisette.PldAccountant\(\), got accountant='rdp'"),
    "a class for a ledger": ({"ledger": Ledger}, "Ledger or the path of its file, got <class"),
    "a file for records": ({"dataset": "patients.csv"}, "a str has no length and index by record"),
    "a name for an engine": ({"clip": {"max_grad_norm": 1.0, "engine": "vmap"}}, "got engine='vmap'"),
}


def assert_refused(model: nn.Module, error: Any, message: str, **changes: Any) -> None:
    optimizer = sgd(model)
    with pytest.raises(error, match=message):
        start(model, optimizer=optimizer, **changes)
    assert not optimizer._optimizer_step_pre_hooks
    assert not model._forward_pre_hooks


@pytest.mark.parametrize(("changes", "message"), PROBLEMS.values(), ids=PROBLEMS)
def test_declarations_that_are_refused(changes, message):
    assert_refused(small(), (ValueError, TypeError), message, **changes)


def test_given_noise_must_keep_a_given_budget():
    model = small()
    assert_refused(model, PrivacyError, r"beyond the budget of 0\.01", epsilon=0.01, delta=1e-5)
    with start(model, epsilon=1000.0, delta=1e-5) as run:
        assert run.epsilon(delta=1e-5) <= 1000.0


def test_what_others_spend_meanwhile_ends_a_run_with_a_budget():
    ledger = Ledger()
    with start(small(), noise_multiplier=None, epsilon=2.0, delta=1e-5, ledger=ledger) as run:
        take_steps(run, steps=1)
        ledger.charge(Gaussian(1.0))
        with pytest.raises(PrivacyError, match="beyond the budget of 2"):
            next(run.batches())


def test_size_and_epochs_give_rate_and_steps():
    with start(small(), sampling_rate=None, public_size=6000, expected_batch_size=60, steps=None, epochs=2) as run:
        assert (run.event.sampling_rate, run.steps) == (pytest.approx(0.01), 200)


def test_length_of_the_data_set_changes_nothing_public():
    public = []
    calibrated = {"noise_multiplier": None, "epsilon": 2.0, "delta": 1e-3, "accountant": RdpAccountant()}
    for n in (SIZE, SIZE - 1, 0):
        with start(small(), dataset=(X[:n], Y[:n]), sampling_rate=None, public_size=50, **calibrated) as run:
            public.append((run.event, run.steps, run.noise_multiplier, run._release.expected_batch_size))
            take_steps(run)
            public[-1] += (run.steps_taken, run.epsilon(delta=1e-3), dict(run.ledger.events))
    assert public[0] == public[1] == public[2]


@pytest.mark.parametrize("accountant", [RdpAccountant(), MomentsAccountant()], ids=lambda a: a.name)
def test_calibrated_run_stays_within_its_budget(accountant):
    with start(small(), noise_multiplier=None, epsilon=2.0, delta=1e-5, accountant=accountant) as run:
        take_steps(run)
        assert 2.0 * 0.98 <= run.epsilon(delta=1e-5) <= 2.0


def test_epsilon_where_delta_is_below_the_tail():
    with start(small(), noise_multiplier=0.6) as run:
        take_steps(run)
        assert run.epsilon(delta=2e-30) == run.accountant.compose(run.ledger.events).epsilon(delta=1e-30)
        with pytest.raises(ValueError, match="delta above 1e-30"):
            run.epsilon(delta=1e-30)


def test_step_is_reserved_before_its_batch_is_drawn(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    with start(small(), ledger=ledger, steps=20) as run:
        reserved, draw = [], type(run._sampler).indices

        def indices(sampler: Any, *, step: int) -> np.ndarray:
            reserved.append((step, sum(ledger.events.values())))
            return draw(sampler, step=step)

        monkeypatch.setattr(type(run._sampler), "indices", indices)
        take_steps(run)
        assert all(count > step for step, count in reserved)
        assert ledger.committed == 20
    assert Ledger.read(tmp_path / "ledger.jsonl").events == {run.event: 20}


@pytest.mark.parametrize("sampling", [Poisson(), CyclicPoisson(2)])
def test_epsilon_counts_the_steps_taken_and_a_statement_those_reserved(sampling, tmp_path):
    with start(small(), ledger=tmp_path / "ledger.jsonl", steps=80, sampling=sampling) as run:
        take_steps(run, steps=1)
        more, price = (run.accountant.compose({run.event: steps}).epsilon(delta=1e-5) for steps in (4, 1))
        assert "80 planned, 4 reserved in the ledger and covered by epsilon, 1" in " ".join(run.statement(1e-5).split())
        spent = run.epsilon(delta=1e-5)
    assert more > run.epsilon(delta=1e-5) == spent == pytest.approx(price)


def whole(run: PrivateRun) -> tuple[Tensor, Tensor]:
    return next(next(run.batches()).microbatches(1000))


def test_step_after_a_part_of_the_batch():
    with start(small()) as run:
        x, y = next(next(run.batches()).microbatches(4))
        run.accumulate(loss, x, y)
        with pytest.raises(PrivacyError, match="4 examples of this batch went through"):
            run.optimizer.step()


def test_batch_gone_through_twice():
    with start(small()) as run:
        batch = next(run.batches())
        for x, y in batch.microbatches(8):
            run.accumulate(loss, x, y)
        with pytest.raises(PrivacyError, match=r"loss.backward\(\), and microbatches\(\) once for each batch"):
            next(batch.microbatches(8))


@pytest.mark.parametrize("change", [lambda x: x[:-1], lambda x: torch.cat([x, x])], ids=["fewer", "more"])
def test_rows_that_are_not_those_of_the_microbatch(change):
    with start(small()) as run:
        x, y = whole(run)
        with pytest.raises(PrivacyError, match="give one row for each"):
            run.accumulate(loss, change(x), change(y))
        run.accumulate(loss, x, y)
        run.optimizer.step()


def test_batch_without_a_step():
    with start(small()) as run:
        batches = run.batches()
        next(batches)
        for again in (batches, run.batches()):
            with pytest.raises(PrivacyError, match="also an empty one"):
                next(again)


def test_stray_backward():
    model = small()
    with start(model) as run:
        x, y = whole(run)
        run.accumulate(loss, x, y)
        loss(model, x, y).backward()
        weight = model.out.weight.clone()
        with pytest.raises(PrivacyError, match=r"\.grad of hidden.bias, .* holds a gradient that is not private"):
            run.optimizer.step()
        assert torch.equal(model.out.weight, weight)
        run.optimizer.zero_grad()
        run.optimizer.step()


def test_parameters_that_join_or_thaw_during_the_run():
    model, other = small(), nn.Linear(2, 2)
    for change in (
        lambda run: run.optimizer.add_param_group({"params": other.parameters()}),
        lambda run: model.hidden.requires_grad_(True),
    ):
        with start(model, optimizer=sgd(model)) as run:
            whole(run)
            run._batch.bounded = len(run._batch.indices)
            change(run)
            with pytest.raises(PrivacyError, match="since the run began:\n  2 trainable parameters of the optimizer"):
                run.optimizer.step()
        model.hidden.requires_grad_(False)  # for the second run


def test_a_tensor_that_the_loss_has_kept_is_explained_where_it_is_read():
    kept: list[Tensor] = []

    def keeps(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = loss(model, x, y)
        kept.append(value.detach())
        return value

    def train() -> None:
        with start(small()) as run:
            run.accumulate(keeps, *whole(run))
            torch.stack(kept).mean()

    with pytest.raises(RuntimeError) as raised:
        train()
    assert "keeps nothing between its calls" in raised.value.__notes__[0]


def test_a_run_and_its_batches_show_what_was_declared():
    rows = torch.zeros(977, 3)
    with start(nn.Linear(3, 2), dataset=rows, steps=2, expected_batch_size=500, noise_multiplier=3.0) as run:
        text = repr(run)
        assert all(words in text for words in ("0 of 2", "noise_multiplier=3.0", "500"))
        assert "977" not in text + run._repr_html_()  # the number of rows
        assert repr(next(run.batches())) == "<Batch: expected size 500>"
    assert JointBatch.__repr__ is Batch.__repr__  # a dataclass would write its own, with the indices
    assert "<script>" not in Ledger(dataset="<script>")._repr_html_()


def parts() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    gc.collect()  # runs that earlier tests have left
    model = nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.1), nn.Tanh(), nn.Linear(6, 3))
    model.register_buffer("scale", torch.ones(()))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def begin(model: nn.Module, optimizer: torch.optim.Optimizer, **changes: Any) -> PrivateRun:
    return start(model, optimizer=optimizer, sampling_rate=1.0, accountant=RdpAccountant(), **changes)


def test_a_run_that_was_interrupted_within_a_batch_is_closed_without_its_handle():
    """Random numbers and buffers are those from before the batch, and another run takes the steps that are left."""
    model, optimizer = parts()
    lost = begin(model, optimizer)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with suppress(KeyboardInterrupt):
        for batch in lost.batches():
            for x, y in batch.microbatches(5):
                model.get_buffer("scale").fill_(float(x[0, 0]))
                lost.accumulate(loss, x, y)
                raise KeyboardInterrupt
    with pytest.raises(PrivacyError, match=r"close this run and start another with noisette\.privatize"):
        next(lost.batches())
    close_run(model)
    assert float(model.get_buffer("scale")) == 1.0
    assert torch.equal(torch.rand(2), expected)
    second = begin(model, optimizer, ledger=lost.ledger)
    take_steps(second)
    assert lost.ledger.events == {second.event: 3}


def test_a_run_that_is_collected_leaves_the_optimizer_plain():
    model, optimizer = parts()
    run = begin(model, optimizer)
    batch = next(run.batches())
    for x, y in batch.microbatches(5):
        run.accumulate(loss, x, y)
    run.optimizer.step()
    del run
    gc.collect()
    assert not optimizer._optimizer_step_pre_hooks
    assert batch.bounded, "a batch that is kept keeps no run alive"
