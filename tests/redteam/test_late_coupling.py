"""Models that couple examples from some step on: ramps, flags, other arguments, replaced layers, larger sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from asserted_loop import AssertedLoop, Custom, records
from noisette import PrivacyError

START = 3  # step in which the coupling begins


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def model(function: Callable[..., Tensor] = lambda m, x: m.second(m.first(x))) -> Custom:
    torch.manual_seed(0)
    made = Custom(function, first=nn.Linear(6, 5), second=nn.Linear(5, 3), alpha=0.0, on=False, name="plain", sizes=[1])
    made.register_buffer("gate", torch.zeros(()), persistent=False)
    return made


class Centred(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return centred(super().forward(input))


def when(condition: Callable[[Any], object]) -> Callable[..., Tensor]:
    return lambda m, x: m.second(centred(m.first(x)) if condition(m) else m.first(x))


def replace_layer(m: Any) -> None:
    m.first = nn.Sequential(m.first, Custom(lambda m, x: centred(x)))


def replace_forward(m: Any) -> None:
    forward = m.first.forward
    m.first.forward = lambda x: centred(forward(x))


@dataclass
class Late:
    """A model, what happens to it before the step in which coupling begins, and how the loop calls it from then on."""

    function: Callable[..., Tensor]
    change: Callable[[Any], Any] = lambda m: None
    call: Callable[..., Tensor] | None = None


def plain(m: Any, x: Tensor) -> Tensor:
    return m.second(m.first(x))


def long(m: Any, x: Tensor) -> Tensor:
    return m.second((centred(m.first(x)) if x.shape[1] > 10 else m.first(x)).mean(1))


LATE = {
    "a flag": Late(when(lambda m: m.on), lambda m: setattr(m, "on", True)),
    "a number": Late(when(lambda m: m.alpha > 0), lambda m: setattr(m, "alpha", 0.5)),
    "a name": Late(when(lambda m: m.name == "mixed"), lambda m: setattr(m, "name", "mixed")),
    "a list": Late(when(lambda m: len(m.sizes) > 1), lambda m: m.sizes.append(2)),
    "a new attribute": Late(when(lambda m: hasattr(m, "extra")), lambda m: setattr(m, "extra", 1)),
    "a buffer of one number": Late(when(lambda m: m.gate > 0), lambda m: m.gate.fill_(1.0)),
    "evaluation mode": Late(when(lambda m: not m.training), lambda m: m.eval()),
    "mode of one layer": Late(when(lambda m: not m.second.training), lambda m: m.second.eval()),
    "a replaced layer": Late(plain, replace_layer),
    "another class": Late(plain, lambda m: setattr(m.first, "__class__", Centred)),
    "a forward hook": Late(plain, lambda m: m.first.register_forward_hook(lambda part, args, out: centred(out))),
    "another function": Late(plain, lambda m: setattr(m, "function", when(lambda m: True))),
    "another forward": Late(plain, replace_forward),
    "a keyword argument": Late(
        lambda m, x, how="plain": m.second(centred(m.first(x)) if how == "mixed" else m.first(x)),
        call=lambda m, x: m(x, how="mixed"),
    ),
    "another number": Late(
        lambda m, x, k=1: m.second(centred(m.first(x)) if k > 1 else m.first(x)), call=lambda m, x: m(x, 2)
    ),
    "more axes": Late(
        lambda m, x: m.second(centred(m.first(x)).mean(1) if x.dim() > 2 else m.first(x)),
        call=lambda m, x: m(x.unsqueeze(1)),
    ),
    "another type": Late(
        lambda m, x: m.second(m.first(x) if x.is_floating_point() else centred(m.first(x.float()))),
        call=lambda m, x: m((10 * x).long()),
    ),
}


@pytest.mark.parametrize("late", LATE.values(), ids=LATE)
def test_refused_in_the_step_in_which_it_begins(late: Late) -> None:
    attacked, started = model(late.function), [False]

    def before_step(step: int) -> None:
        if step == START:
            late.change(attacked)
            started[0] = True

    def scores(m: nn.Module, x: Tensor) -> Tensor:
        return late.call(m, x) if late.call is not None and started[0] else m(x)

    loop = AssertedLoop(attacked, records(6), scores, before_step=before_step)
    with pytest.raises(PrivacyError):
        loop.train(6)
    assert loop.steps_taken == START


def test_longer_sequences_are_checked_anew() -> None:
    started = [False]

    def scores(m: nn.Module, x: Tensor) -> Tensor:
        return m(x.unsqueeze(1).expand(-1, 12 if started[0] else 3, -1))

    loop = AssertedLoop(model(long), records(6), scores, before_step=lambda step: started.__setitem__(0, step == START))
    with pytest.raises(PrivacyError):
        loop.train(6)
    assert loop.steps_taken == START


@pytest.mark.parametrize("size", [33, 50, 100])
def test_microbatches_larger_than_any_that_was_checked(size: int) -> None:
    coupled = model(lambda m, x: m.second(centred(m.first(x)) if len(x) >= size else m.first(x)))
    with pytest.raises(PrivacyError, match="differs between a batch of"):
        AssertedLoop(coupled, records(6, count=size)).train(microbatch=size)


def test_a_ramp_from_nothing_is_refused_when_it_begins() -> None:
    ramp = model(lambda m, x: m.second(m.first(x) - m.alpha * m.first(x).mean(0)))
    loop = AssertedLoop(ramp, records(6), before_step=lambda step: setattr(ramp, "alpha", max(0.0, 0.1 * (step - 2))))
    with pytest.raises(PrivacyError):
        loop.train(8)
    assert loop.steps_taken == START


def count_checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from noisette.validation import checks

    whole, counted = checks.prove, []

    def counting(*args: Any) -> None:
        counted.append(1)
        whole(*args)

    monkeypatch.setattr(checks, "prove", counting)
    return counted


def test_a_harmless_ramp_is_checked_at_powers_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_checks(monkeypatch)
    ramp = model(lambda m, x: m.second(m.first(x) * (1 + m.alpha)))
    AssertedLoop(ramp, records(6), before_step=lambda step: setattr(ramp, "alpha", 0.01 * step)).train(20)
    assert len(counted) == 1 + 5  # the first, and changes 1, 2, 4, 8 and 16


def test_values_that_return_are_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_checks(monkeypatch)
    flags = model(lambda m, x: m.second(m.first(x) * (2 if m.on else 1)))
    AssertedLoop(flags, records(6), before_step=lambda step: setattr(flags, "on", step % 2 == 1)).train(12)
    assert len(counted) == 2


def test_a_mode_that_changes_between_microbatches_loses_nothing() -> None:
    harmless = model()
    loop = AssertedLoop(harmless, records(6), before_microbatch=lambda number: harmless.train(number % 2 == 0))
    assert max(loop.train(compare=True).errors) < 1e-4


def test_a_check_between_two_calls_of_one_loss_loses_nothing() -> None:
    twice = model(lambda m, x, k=1: m.second(m.first(x) * k))
    loop = AssertedLoop(twice, records(6), lambda m, x: m(x) + m(x, 2))
    assert max(loop.train(compare=True).errors) < 1e-4


def test_no_call_of_a_check_or_of_a_microbatch_is_left_in_an_attribute() -> None:
    def counting(m: Any, x: Tensor) -> Tensor:
        m.calls += 1
        return m.second(m.first(x))

    counted = Custom(counting, first=nn.Linear(6, 5), second=nn.Linear(5, 3), calls=0)
    AssertedLoop(counted, records(6)).train()
    assert counted.calls == 0
