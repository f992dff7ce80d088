"""The joiner: what it refuses, what it releases, what it costs, and what it leaves behind."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette
from noisette import Gaussian, Ledger, MomentsAccountant, PrivacyError, RdpAccountant, privatize
from noisette.core.noise import GaussianNoise, SecretKey
from noisette.core.release import ROUNDING
from oracle import clipped_sum

SECRET = bytes(range(32))
SIZE = 60
X, Y = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(1)), torch.arange(SIZE) % 3
DECLARED = {"sampling_rate": 0.5, "expected_batch_size": 30, "steps": 3, "noise_multiplier": 1.0}


@pytest.fixture(autouse=True)
def _known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisette.ranks.launch.SecretKey", partial(SecretKey, SECRET))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(5, 6), nn.Linear(6, 3)
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def sgd(model: nn.Module, **settings: Any) -> torch.optim.SGD:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, **settings)


def start(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, dataset: Any = (X, Y), **changes: Any):
    declared = {**DECLARED, **changes}
    clip = noisette.PerExampleClip(model, 0.7)
    try:
        return privatize(clip, optimizer or sgd(model), dataset, **{k: v for k, v in declared.items() if v is not None})
    except BaseException:
        clip.close()
        raise


def take_steps(run, *, pieces: int = 16, zero: bool = True) -> None:
    for batch in run.batches():
        for x, y in batch.microbatches(pieces):
            run.accumulate(loss, x, y)
        run.optimizer.step()
        if zero:
            run.optimizer.zero_grad()


def expected_noise(model: nn.Module, step: int, divisor: float = 30, std: float = 0.7) -> dict[str, Tensor]:
    noise = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    GaussianNoise(SecretKey(SECRET)).add_(noise, step=step, std=std * (1 + ROUNDING) / divisor)
    return noise


# What is released


def test_gradient_is_the_clipped_sum_and_noise_over_the_constant() -> None:
    model = Small()
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


@pytest.mark.parametrize("pieces", [1, 5, 1000])
def test_pieces_change_nothing(pieces: int) -> None:
    first = Small()
    other = copy.deepcopy(first)
    for model, size in ((first, 64), (other, pieces)):
        with start(model) as run:
            take_steps(run, pieces=size)
    for p, q in zip(first.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_empty_batch_is_a_step_of_noise_alone() -> None:
    model = Small()
    with start(model, sampling_rate=1e-300, steps=10) as run:
        for step, batch in enumerate(run.batches()):
            assert list(batch.microbatches(8)) == []
            run.optimizer.step()
            for name, z in expected_noise(model, step).items():
                torch.testing.assert_close(dict(model.named_parameters())[name].grad, z)
            run.optimizer.zero_grad()
    assert run.steps_taken == run.ledger.committed == 10


def test_unused_parameter_gets_its_noise() -> None:
    model = Small()
    with start(model) as run:
        take_steps(run, zero=False)
        torch.testing.assert_close(model.unused.grad, expected_noise(model, 2)["unused"])


@pytest.mark.parametrize(
    "engine",
    [noisette.engines.BookKeeping(), noisette.engines.ReweightGP(), noisette.engines.PerExampleLoop()],
    ids=lambda e: type(e).__name__,
)
def test_record_that_is_not_a_number_changes_nothing_at_all(engine) -> None:
    """Not the weights, not a step, not an error; at every rate it is as if the record were not there."""
    bad = X.clone()
    bad[7] = float("nan")
    weights = []
    for x, dropped in ((bad, SIZE), (X, 7)):
        torch.manual_seed(3)
        model = Small()
        clip = noisette.PerExampleClip(model, 0.7, engine=engine)
        kept = torch.arange(SIZE) != dropped
        with privatize(clip, sgd(model), (x, Y, kept), **DECLARED) as run:
            for batch in run.batches():
                for inputs, y, keep in batch.microbatches(100):
                    run.accumulate(lambda model, x, y, keep: loss(model, x, y) * keep, inputs, y, keep)
                run.optimizer.step()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert weights[0].isfinite().all()
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-5, atol=1e-6)


def test_two_runs_never_share_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("noisette.ranks.launch.SecretKey", SecretKey)
    grads = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        model = Small()
        with start(model, sampling_rate=1e-300, steps=1) as run:
            take_steps(run, zero=False)
        grads.append(model.hidden.weight.grad)
    assert not torch.equal(*grads)


# What is declared


PROBLEMS = {
    "both rate and size": ({"public_size": 60}, "exactly one of sampling_rate and public_size"),
    "both steps and epochs": ({"epochs": 1}, "exactly one of steps and epochs"),
    "no budget": ({"noise_multiplier": None}, "epsilon, noise_multiplier or both"),
    "epsilon without delta": ({"noise_multiplier": None, "epsilon": 1.0}, "epsilon needs delta"),
    "noise zero": ({"noise_multiplier": 0}, "noise_multiplier"),
    "delta above 1/size": ({"delta": 0.02}, "one over the declared size"),
    "rate above one": ({"sampling_rate": 1.5}, "sampling_rate"),
    "no steps": ({"steps": 0}, "steps"),
}


@pytest.mark.parametrize(("changes", "message"), PROBLEMS.values(), ids=PROBLEMS)
def test_declarations_that_are_refused(changes: dict[str, Any], message: str) -> None:
    model = Small()
    optimizer = sgd(model)
    with pytest.raises((ValueError, TypeError), match=message):
        start(model, optimizer, **changes)
    assert not optimizer._optimizer_step_pre_hooks
    assert not model._forward_pre_hooks


def test_given_noise_must_keep_a_given_budget() -> None:
    model = Small()
    optimizer = sgd(model)
    with pytest.raises(PrivacyError, match=r"beyond the budget of 0\.01"):
        start(model, optimizer, epsilon=0.01, delta=1e-5)
    assert not optimizer._optimizer_step_pre_hooks
    assert not model._forward_pre_hooks
    run = start(model, optimizer, epsilon=1000.0, delta=1e-5)
    assert run.epsilon(delta=1e-5) <= 1000.0
    run.close()


def test_what_others_spend_meanwhile_ends_a_run_with_a_budget() -> None:
    ledger = Ledger()
    run = start(Small(), noise_multiplier=None, epsilon=2.0, delta=1e-5, ledger=ledger)
    batches = run.batches()
    for x, y in next(batches).microbatches(1000):
        run.accumulate(loss, x, y)
    ledger.charge(Gaussian(1.0))
    run.optimizer.step()
    run.optimizer.zero_grad()
    with pytest.raises(PrivacyError, match="beyond the budget of 2"):
        next(batches)
    run.close()


def test_size_and_epochs_give_rate_and_steps() -> None:
    run = start(Small(), sampling_rate=None, public_size=6000, expected_batch_size=60, steps=None, epochs=2)
    assert run.event.sampling_rate == pytest.approx(0.01)
    assert run.steps == 200
    run.close()


def test_length_of_the_data_set_changes_nothing_public() -> None:
    public = []
    for n in (SIZE, SIZE - 1, 0):
        model = Small()
        with start(
            model,
            dataset=(X[:n], Y[:n]),
            sampling_rate=None,
            public_size=50,
            noise_multiplier=None,
            epsilon=2.0,
            delta=1e-3,
            accountant=RdpAccountant(),
        ) as run:
            public.append((run.event, run.steps, run.noise_multiplier, run._release.expected_batch_size))
            take_steps(run)
            public[-1] += (run.steps_taken, run.epsilon(delta=1e-3), dict(run.ledger.events))
    assert public[0] == public[1] == public[2]


# What it costs


@pytest.mark.parametrize("accountant", [RdpAccountant(), MomentsAccountant()], ids=lambda a: a.name)
def test_calibrated_run_stays_within_its_budget(accountant) -> None:
    run = start(Small(), noise_multiplier=None, epsilon=2.0, delta=1e-5, accountant=accountant)
    take_steps(run)
    assert 2.0 * 0.98 <= run.epsilon(delta=1e-5) <= 2.0
    run.close()


def test_epsilon_where_delta_is_below_the_tail() -> None:
    run = start(Small(), noise_multiplier=0.6)
    take_steps(run)
    assert run.epsilon(delta=1e-30) == math.inf
    with pytest.raises(ValueError, match="delta"):
        run.epsilon(delta=0)
    run.close()


def test_step_is_reserved_before_its_batch_is_drawn(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = noisette.Ledger(tmp_path / "ledger.jsonl")
    run = start(Small(), ledger=ledger, steps=20)
    reserved = []
    draw = type(run._sampler).indices
    monkeypatch.setattr(
        type(run._sampler),
        "indices",
        lambda s, *, step: reserved.append((step, sum(ledger.events.values()))) or draw(s, step=step),
    )
    take_steps(run)
    assert all(count > step for step, count in reserved)
    assert ledger.committed == 20
    run.close()
    assert noisette.Ledger.read(tmp_path / "ledger.jsonl").events == {run.event: 20}


# What it refuses


def first_batch(run):
    return next(run.batches())


def whole(run, batch) -> tuple[Tensor, Tensor]:
    return next(iter(batch.microbatches(1000)))


def test_step_after_a_part_of_the_batch() -> None:
    with start(Small()) as run:
        batch = first_batch(run)
        x, y = next(batch.microbatches(4))
        run.accumulate(loss, x, y)
        with pytest.raises(PrivacyError, match="4 examples of this batch went through"):
            run.optimizer.step()


def test_batch_gone_through_twice() -> None:
    with start(Small()) as run:
        batch = first_batch(run)
        for x, y in batch.microbatches(8):
            run.accumulate(loss, x, y)
        with pytest.raises(PrivacyError, match=r"microbatches\(\) once for each batch"):
            next(batch.microbatches(8))


@pytest.mark.parametrize(
    "change", [lambda x: x[:-1], lambda x: x.repeat(2, *[1] * (x.dim() - 1))], ids=["fewer", "more"]
)
def test_rows_that_are_not_those_of_the_microbatch(change: Callable[[Tensor], Tensor]) -> None:
    with start(Small()) as run:
        x, y = whole(run, first_batch(run))
        with pytest.raises(PrivacyError, match="give one for each example of the microbatch"):
            run.accumulate(loss, change(x), change(y))
        run.accumulate(loss, x, y)
        run.optimizer.step()


def test_batch_without_a_step() -> None:
    with start(Small()) as run:
        batches = run.batches()
        next(batches)
        with pytest.raises(PrivacyError, match="also an empty one"):
            next(batches)
        with pytest.raises(PrivacyError, match="also an empty one"):
            next(run.batches())


def test_step_without_a_batch_and_more_batches_than_declared() -> None:
    with start(Small()) as run:
        with pytest.raises(PrivacyError, match="needs a batch of its own"):
            run.optimizer.step()
        take_steps(run)
        with pytest.warns(UserWarning, match="this run is finished"):
            assert list(run.batches()) == []
        assert run.steps_taken == 3


def test_second_optimizer() -> None:
    model, free = Small(), nn.Linear(2, 2)
    other, stranger = torch.optim.Adam(model.out.parameters()), torch.optim.Adam(free.parameters())
    free(torch.ones(1, 2)).sum().backward()
    with start(model) as run:
        x, y = whole(run, first_batch(run))
        run.accumulate(loss, x, y)
        run.optimizer.step()
        weight = model.out.weight.clone()
        with pytest.raises(PrivacyError, match=r"second optimizer \(Adam\) steps out.bias, out.weight"):
            other.step()
        assert torch.equal(model.out.weight, weight)
        stranger.step()
    other.step()
    assert not torch.equal(model.out.weight, weight)


def test_stray_backward() -> None:
    model = Small()
    with start(model) as run:
        x, y = whole(run, first_batch(run))
        run.accumulate(loss, x, y)
        loss(model, x, y).backward()
        weight = model.out.weight.clone()
        with pytest.raises(PrivacyError, match=r"\.grad of hidden.bias, .* holds a gradient that is not private"):
            run.optimizer.step()
        assert torch.equal(model.out.weight, weight)
        run.optimizer.zero_grad()
        run.optimizer.step()


def test_parameters_that_join_or_thaw_during_the_run() -> None:
    model, other = Small(), nn.Linear(2, 2)
    with start(model) as run:
        first_batch(run)
        run._batch.bounded = len(run._batch.indices)
        run.optimizer.add_param_group({"params": other.parameters()})
        with pytest.raises(PrivacyError, match="since the run began:\n  2 trainable parameters of the optimizer"):
            run.optimizer.step()
    model = Small()
    model.hidden.requires_grad_(False)
    with start(model, torch.optim.SGD(model.parameters(), lr=0.1)) as run:
        first_batch(run)
        run._batch.bounded = len(run._batch.indices)
        model.hidden.requires_grad_(True)
        with pytest.raises(PrivacyError, match="since the run began:\n  2 trainable parameters of the optimizer"):
            run.optimizer.step()


# What it leaves alone


def test_an_interrupt_within_the_loss_leaves_nothing_behind() -> None:
    """The same microbatch may be given again, and the model is the user's own."""
    model = Small()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with start(model) as run:
        x, y = whole(run, first_batch(run))
        hook = model.out.register_forward_pre_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.accumulate(loss, x, y)
        assert not torch.overrides._get_current_function_mode_stack()
        hook.remove()
        run.accumulate(loss, x, y)
        run.optimizer.step()


def test_a_tensor_that_the_loss_has_kept_is_explained_where_it_is_read() -> None:
    kept: list[Tensor] = []

    def keeps(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value = loss(model, x, y)
        kept.append(value.detach())
        return value

    def train() -> None:
        with start(Small()) as run:
            run.accumulate(keeps, *whole(run, first_batch(run)))
            torch.stack(kept).mean()

    with pytest.raises(RuntimeError) as raised:
        train()
    assert "keeps nothing between its calls" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    "call", [lambda o: o.step(lambda: 0.0), lambda o: o.step(closure=lambda: 0.0)], ids=["position", "name"]
)
def test_closure(call: Callable[[torch.optim.Optimizer], object]) -> None:
    with start(Small()) as run:
        first_batch(run)
        with pytest.raises(PrivacyError, match="without a closure"):
            call(run.optimizer)
