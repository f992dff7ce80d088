"""One batch, one release, one step: whatever an optimizer's ``step`` calls, takes as arguments or wraps.

An optimizer may call the step of its base class, or that of another optimizer, and torch then calls the hooks of a step
again. Noise is drawn once for a batch, and nothing but the released gradient reaches an optimizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from noisette import AdaptiveClip, PerExampleClip, PrivacyError, privatize
from noisette.run.model_checks import StepsOfScaler
from small_loop import RECORDS, X, Y, clipped_mean, flat, losses, process, small_model, small_run


class CallsBase(SGD):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class CallsBaseThroughTwoClasses(CallsBase):
    def step(self, closure: Any = None) -> Any:
        return super().step(closure=closure)


class Centred(SGD):
    """Takes the mean out of each gradient, in a new tensor or in place, and then steps."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = p.grad - 0.0
                p.grad.mul_(1.0)
        return super().step()


class Lookahead(Optimizer):
    """Steps an inner optimizer, and goes half of the way back after every second step."""

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


class PlainWrapper:
    """Holds an optimizer and is none itself."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    def step(self) -> None:
        self.inner.step()


class FailsOnce(SGD):
    failed = False

    def step(self, closure: Any = None) -> Any:
        super().step()
        if not self.failed:
            self.failed = True
            raise KeyboardInterrupt


def trained(model: nn.Module, optimizer: Any, step: Callable[[], Any] | None = None, steps: int = 3) -> Tensor:
    """The weights after a run, which draws noise once for each step."""
    with small_run(model, optimizer, steps=steps) as run:
        drawn: list[int] = []
        release = run._release.__call__
        run._release = lambda *args, step: drawn.append(step) or release(*args, step=step)
        for batch in run.batches():
            process(run, batch)
            (step or optimizer.step)()
            optimizer.zero_grad()
        assert drawn == list(range(steps))
        assert run.steps_taken == run.ledger.committed == steps
    return flat(model)


def by_sgd(steps: int = 3) -> Tensor:
    model = small_model()
    return trained(model, SGD(model.parameters(), lr=0.3), steps=steps)


SAME_AS_SGD: dict[str, Callable[[nn.Module], Optimizer]] = {
    "calls its base": lambda m: CallsBase(m.parameters(), lr=0.3),
    "calls two bases": lambda m: CallsBaseThroughTwoClasses(m.parameters(), lr=0.3),
    "changes the gradient first": lambda m: Centred(m.parameters(), lr=0.3),
    "wraps an optimizer": lambda m: Lookahead(SGD(m.parameters(), lr=0.3)),
    "wraps a wrapper": lambda m: Lookahead(Lookahead(CallsBase(m.parameters(), lr=0.3))),
}


@pytest.mark.parametrize("make", SAME_AS_SGD.values(), ids=SAME_AS_SGD)
def test_a_step_within_a_step_releases_nothing_more(make: Callable[[nn.Module], Optimizer]) -> None:
    model = small_model()
    torch.testing.assert_close(trained(model, make(model), steps=1), by_sgd(1), rtol=1e-6, atol=1e-7)
    model = small_model()
    assert trained(model, make(model)).isfinite().all()


def test_a_wrapper_that_is_no_optimizer_steps_the_one_of_the_run() -> None:
    model = small_model()
    inner = SGD(model.parameters(), lr=0.3)
    torch.testing.assert_close(trained(model, inner, PlainWrapper(inner).step), by_sgd(), rtol=1e-6, atol=1e-7)


def test_the_bound_adapts_once_for_a_step() -> None:
    norms = []
    for kind in (SGD, CallsBaseThroughTwoClasses):
        model = small_model()
        rule, optimizer = AdaptiveClip(0.1), kind(model.parameters(), lr=0.1)
        clip, calls = PerExampleClip(model, clipping=rule), []
        after = clip.after_step
        clip.after_step = lambda after=after, calls=calls: calls.append(1) or after()
        declared = {"expected_batch_size": RECORDS, "sampling_rate": 1.0, "steps": 3, "noise_multiplier": 1e-9}
        with privatize(clip, optimizer, (X, Y), **declared, separability="asserted") as run:
            for batch in run.batches():
                process(run, batch)
                optimizer.step()
        assert len(calls) == 3
        norms.append(rule.max_grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)
    assert norms[0] != 0.1


def test_an_error_within_a_step_does_not_open_the_next_one() -> None:
    """After the error no step is under way: a gradient that is not private cannot pass as one of an inner step."""
    model = small_model()
    optimizer = FailsOnce(model.parameters(), lr=0.3)
    with small_run(model, optimizer) as run:
        batches = run.batches()
        process(run, next(batches))
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
        moved = flat(model)
        losses(model, X, Y).sum().backward()
        with pytest.raises(PrivacyError, match="needs a batch of its own"):
            optimizer.step()
        with pytest.raises(PrivacyError, match="second optimizer"):
            SGD(model.parameters(), lr=0.1).step()
        assert torch.equal(flat(model), moved)
        optimizer.zero_grad()
        process(run, next(batches))
        optimizer.step()
        assert run.steps_taken == 2


def test_a_second_step_for_one_batch_is_refused() -> None:
    model = small_model()
    optimizer = CallsBase(model.parameters(), lr=0.3)
    with small_run(model, optimizer) as run:
        process(run, next(run.batches()))
        optimizer.step()
        moved = flat(model)
        with pytest.raises(PrivacyError, match="needs a batch of its own"):
            optimizer.step()
        assert torch.equal(flat(model), moved)


@pytest.mark.parametrize("wraps", [lambda o: Lookahead(o).step, lambda o: SGD(o.param_groups, lr=0.1).step])
def test_an_optimizer_around_the_one_of_the_run_is_refused_with_the_way_out(wraps: Any) -> None:
    model = small_model()
    inner = SGD(model.parameters(), lr=0.3)
    with small_run(model, inner) as run:
        process(run, next(run.batches()))
        with pytest.raises(PrivacyError, match="give the outer one to privatize"):
            wraps(inner)()
        assert run.steps_taken == 0


CLOSURES: dict[str, Callable[[Optimizer, Callable[[], Any]], Any]] = {
    "position": lambda o, c: o.step(c),
    "name": lambda o, c: o.step(closure=c),
}


@pytest.mark.parametrize("call", CLOSURES.values(), ids=CLOSURES)
@pytest.mark.parametrize("kind", [SGD, CallsBase, Adam])
def test_a_closure_is_never_called(call: Any, kind: Any) -> None:
    model, called = small_model(), []
    optimizer = kind(model.parameters(), lr=0.1)
    with small_run(model, optimizer) as run:
        process(run, next(run.batches()))
        before = flat(model)
        with pytest.raises(PrivacyError, match="without a closure"):
            call(optimizer, lambda: called.append(1))
        assert not called
        assert torch.equal(flat(model), before)
        assert run.steps_taken == 0


@pytest.mark.parametrize("kind", [SGD, Adam, CallsBase], ids=lambda k: k.__name__)
@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("to_none", [False, True])
def test_a_grad_scaler_is_refused_with_the_reason(kind: Any, unscale: bool, to_none: bool) -> None:
    model = small_model()
    optimizer = kind(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    with small_run(model, optimizer) as run:
        batches = run.batches()
        process(run, next(batches))
        optimizer.step()
        optimizer.zero_grad(set_to_none=to_none)
        moved = flat(model)
        batch = next(batches)
        for x, y in batch.microbatches(16):
            run.backward(scaler.scale(losses(model, x, y)))
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
    torch.testing.assert_close(
        trained(model, optimizer, lambda: scaler.step(optimizer)), by_sgd(), rtol=1e-6, atol=1e-7
    )


def test_what_an_optimizer_said_of_scalers_is_put_back() -> None:
    for said in (True, False):
        optimizer = SGD(small_model().parameters(), lr=0.1)
        optimizer._step_supports_amp_scaling = said
        StepsOfScaler(optimizer).remove()
        assert optimizer._step_supports_amp_scaling is said


class NoHooks(Optimizer):
    """Looks like an optimizer and lets torch know nothing of its steps."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner

    @property
    def param_groups(self) -> Any:
        return self.inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_whose_steps_cannot_be_seen_is_refused() -> None:
    model = small_model()
    inner = SGD(model.parameters(), lr=0.1)
    with pytest.raises(
        PrivacyError, match=r"step\(\) of this NoHooks calls no step hooks.*the optimizer that it wraps"
    ):
        small_run(model, NoHooks(inner))
    torch.testing.assert_close(trained(model, inner, NoHooks(inner).step), _with_rate(0.1), rtol=1e-6, atol=1e-7)


def _with_rate(lr: float) -> Tensor:
    model = small_model()
    return trained(model, SGD(model.parameters(), lr=lr))


@pytest.mark.parametrize("value", [1.0, 1e-300, math.nan, math.inf, -1e-30])
@pytest.mark.parametrize("where", [0, -1])
def test_a_gradient_that_holds_anything_is_refused(value: float, where: int) -> None:
    model = small_model()
    optimizer = SGD(model.parameters(), lr=0.1)
    with small_run(model, optimizer) as run:
        process(run, next(run.batches()))
        p = list(model.parameters())[where]
        p.grad = torch.zeros_like(p)
        p.grad.view(-1)[-1] = value
        with pytest.raises(PrivacyError, match="holds a gradient that is not private"):
            optimizer.step()


@pytest.mark.parametrize("kind", [SGD, CallsBase])
def test_the_released_gradient_is_that_of_the_definition(kind: Any) -> None:
    model = small_model()
    truth = clipped_mean(model)
    optimizer = kind(model.parameters(), lr=0.1)
    with small_run(model, optimizer, steps=1) as run:
        for batch in run.batches():
            process(run, batch)
            optimizer.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.grad, truth[name], rtol=1e-5, atol=1e-7)
