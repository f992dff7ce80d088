"""One batch, one release, one step: whatever an optimizer's ``step`` calls, takes as arguments or wraps.

An optimizer may call the step of its base class, or that of another optimizer, and torch then calls the hooks of a step
again. Noise is drawn once for a batch, and nothing but the released gradient reaches an optimizer.
"""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from noisette import AdaptiveClip, PerExampleClip, PrivacyError, PrivateRun, close_run, privatize
from noisette.core.release import GaussianRelease
from noisette.core.steps import unfinished_runs
from small_loop import RECORDS, X, Y, flat, loss, losses, process, small_model, small_pair, small_run


class Outer(SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class CallsTwoBases(Outer):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure=closure)


class Centred(SGD):
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad - 0.0
                p.grad.mul_(1.0)
        return super().step()


class Lookahead(Optimizer):
    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.steps = inner, 0
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        self.inner.step(closure)
        self.steps += 1
        if self.steps % 2 == 0:
            for slow, p in zip(self.slow, [p for g in self.inner.param_groups for p in g["params"]], strict=True):
                slow.lerp_(p, 0.5)
                p.copy_(slow)


class FailsOnce(SGD):
    failed = False

    def step(self, closure: Any = None) -> Any:
        super().step()
        if not self.failed:
            self.failed = True
            raise KeyboardInterrupt


def trained(model: nn.Module, optimizer: Any, step: Callable[[], Any] | None = None, steps: int = 3) -> Tensor:
    called = mock.patch.object(GaussianRelease, "__call__", autospec=True, side_effect=GaussianRelease.__call__)
    with called as release, small_run(model, optimizer, steps=steps) as run:
        for batch in run.batches():
            process(run, batch)
            (step or optimizer.step)()
            optimizer.zero_grad()
    assert [call.kwargs["step"] for call in release.call_args_list] == list(range(steps))
    assert run.steps_taken == run.ledger.committed == steps
    return flat(model)


def by_sgd(steps: int = 3, lr: float = 0.3) -> Tensor:
    model = small_model()
    return trained(model, SGD(model.parameters(), lr=lr), steps=steps)


SAME_AS_SGD: dict[str, Callable[[nn.Module], Optimizer]] = {
    "calls two bases": lambda m: CallsTwoBases(m.parameters(), lr=0.3),
    "changes the gradient first": lambda m: Centred(m.parameters(), lr=0.3),
    "wraps an optimizer": lambda m: Lookahead(SGD(m.parameters(), lr=0.3)),
    "wraps a wrapper": lambda m: Lookahead(Lookahead(CallsTwoBases(m.parameters(), lr=0.3))),
}


@pytest.mark.parametrize("make", SAME_AS_SGD.values(), ids=SAME_AS_SGD)
def test_a_step_within_a_step_releases_nothing_more(make: Callable[[nn.Module], Optimizer]) -> None:
    model = small_model()
    torch.testing.assert_close(trained(model, make(model), steps=1), by_sgd(1), rtol=1e-6, atol=1e-7)
    model = small_model()
    assert trained(model, make(model)).isfinite().all()


def test_the_bound_adapts_once_for_a_step() -> None:
    norms, adapted = [], []
    for kind in (SGD, CallsTwoBases):
        model = small_model()
        rule, optimizer = AdaptiveClip(0.1), kind(model.parameters(), lr=0.1)
        clip, calls = PerExampleClip(model, clipping=rule), []
        after = clip.after_step
        clip.after_step = lambda after=after, calls=calls: calls.append(1) or after()
        declared = {"expected_batch_size": RECORDS, "sampling_rate": 1.0, "steps": 3, "noise_multiplier": 1e-9}
        with privatize(clip, optimizer, (X, Y), **declared) as run:
            for batch in run.batches():
                process(run, batch)
                optimizer.step()
        adapted.append(len(calls))
        norms.append(rule.max_grad_norm)
    assert (adapted[0], norms[0]) == (adapted[1], pytest.approx(norms[1], rel=1e-6))
    assert norms[0] != 0.1


def test_an_error_within_a_step_does_not_open_the_next_one() -> None:
    """With the next batch no step is under way: no other optimizer steps, and no gradient passes for an inner one."""
    model, optimizer = small_pair(FailsOnce)
    with small_run(model, optimizer) as run:
        batches = run.batches()
        process(run, next(batches))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        moved = flat(model)
        process(run, next(batches))
        with pytest.raises(PrivacyError, match="second optimizer"):
            SGD(model.parameters(), lr=0.1).step()
        assert torch.equal(flat(model), moved)
        optimizer.step()
        losses(model, X, Y).sum().backward()
        with pytest.raises(PrivacyError, match="needs a batch of its own"):
            optimizer.step()
        assert run.steps_taken == 2


REFUSED: dict[str, tuple[Callable[[SGD], object], str]] = {
    "of a wrapper": (lambda o: Lookahead(o).step(), "give the outer one to privatize"),
    "of an optimizer of the same parameters": (lambda o: SGD(o.param_groups, lr=0.1).step(), "a second optimizer"),
    "with a closure": (lambda o: o.step(lambda: pytest.fail("called")), "without a closure"),
    "with a closure by name": (lambda o: o.step(closure=lambda: pytest.fail("called")), "without a closure"),
}


@pytest.mark.parametrize(("step", "words"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("kind", [SGD, CallsTwoBases])
def test_a_step_that_is_not_the_one_of_the_batch_is_refused(kind: Any, step: Any, words: str) -> None:
    model, optimizer = small_pair(kind)
    with small_run(model, optimizer) as run:
        process(run, next(run.batches()))
        before = flat(model)
        with pytest.raises(PrivacyError, match=words):
            step(optimizer)
        assert torch.equal(flat(model), before)
        assert run.steps_taken == 0
        optimizer.step()
        moved = flat(model)
        with pytest.raises(PrivacyError, match="needs a batch of its own"):
            optimizer.step()
        assert torch.equal(flat(model), moved)


def one_step(run: PrivateRun) -> None:
    process(run, next(run.batches()))
    run.optimizer.step()


ENDS: dict[str, Callable[[PrivateRun], object]] = {
    "after the last step": lambda run: [one_step(run) for _ in range(3)],
    "closed": lambda run: (one_step(run), run.close()),
    "closed within a batch": lambda run: (process(run, next(run.batches())), run.close()),
    "by its model": lambda run: (one_step(run), close_run(run.bound.model)),
    "by its optimizer": lambda run: (process(run, next(run.batches())), close_run(run.optimizer)),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_the_optimizer_is_plain_again(end: Callable[[PrivateRun], object]) -> None:
    model, optimizer = small_pair()
    first = small_run(model, optimizer)
    end(first)
    assert unfinished_runs(model) == []
    before = flat(model)
    for plain in (optimizer, SGD(model.parameters(), lr=0.1)):
        plain.zero_grad()
        losses(model, X, Y).sum().backward()
        plain.step()
        plain.step(lambda: None)
    assert not torch.equal(flat(model), before)
    optimizer.zero_grad()
    with small_run(model, optimizer) as run:
        one_step(run)
    assert run.steps_taken == 1


def test_an_unfinished_run_is_named_with_the_way_out() -> None:
    model, optimizer = small_pair()
    first = small_run(model, optimizer)
    one_step(first)
    with pytest.raises(PrivacyError, match=r"taken 1 of its 3 steps.*noisette.close_run\(model\)"):
        small_run(model, SGD(model.parameters(), lr=0.1))
    close_run(model)
    optimizer.zero_grad()
    with small_run(model, SGD(model.parameters(), lr=0.1)) as second:
        one_step(second)


@pytest.mark.parametrize(("kind", "unscale", "to_none"), [(SGD, False, True), (Adam, True, False)])
def test_a_grad_scaler_is_refused_with_the_reason(kind: Any, unscale: bool, to_none: bool) -> None:
    model, optimizer = small_pair(kind, lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with small_run(model, optimizer) as run:
        batches = run.batches()
        process(run, next(batches))
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        moved = flat(model)
        for x, y in next(batches).microbatches(16):
            run.accumulate(lambda model, x, y: scaler.scale(loss(model, x, y)), x, y)
        if unscale:
            scaler.unscale_(optimizer)
        with pytest.raises(PrivacyError, match=r"skips steps where one gradient overflows.*bfloat16"):
            scaler.step(optimizer)
        assert torch.equal(flat(model), moved)
        optimizer.step()
    assert not any(name in vars(optimizer) for name in ("found_inf", "grad_scale", "_step_supports_amp_scaling"))


def test_a_disabled_grad_scaler_changes_nothing() -> None:
    model = small_model()
    optimizer, scaler = SGD(model.parameters(), lr=0.3), torch.amp.GradScaler("cpu", enabled=False)
    found = trained(model, optimizer, lambda: scaler.step(optimizer))
    torch.testing.assert_close(found, by_sgd(), rtol=1e-6, atol=1e-7)


class NoHooks(Optimizer):
    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_whose_steps_cannot_be_seen_is_refused() -> None:
    model, inner = small_pair(lr=0.1)
    refusal = r"step\(\) of this NoHooks calls no step hooks.*the optimizer that it wraps"
    with pytest.raises(PrivacyError, match=refusal):
        small_run(model, NoHooks(inner))
    torch.testing.assert_close(trained(model, inner, NoHooks(inner).step), by_sgd(lr=0.1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("value", "where"), [(1.0, 0), (1e-300, -1), (math.nan, 0), (-1e-30, -1)])
def test_a_gradient_that_holds_anything_is_refused(value: float, where: int) -> None:
    model, optimizer = small_pair(lr=0.1)
    with small_run(model, optimizer) as run:
        process(run, next(run.batches()))
        p = list(model.parameters())[where]
        p.grad = torch.zeros_like(p)
        p.grad.view(-1)[-1] = value
        with pytest.raises(PrivacyError, match="holds a gradient that is not private"):
            optimizer.step()
