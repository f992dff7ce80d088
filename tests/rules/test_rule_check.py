"""Rules from outside the package are compared with autograd before they are used."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from model_cases import Forward, parameter, squares
from noisette import PrivacyError
from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core import forms as registry
from noisette.core.forms import Dense, Outer
from noisette.rules import rule_check
from noisette.rules.rule_check import rule
from oracle import clipped_sum
from small_loop import clipped_by

Rule = Callable[..., object]


def product(input: Tensor, weight: Tensor) -> Tensor:
    """A user's operation, which the tape records as one."""
    if torch.overrides.has_torch_function((input, weight)):
        return torch.overrides.handle_torch_function(product, (input, weight), input, weight)
    return input.tanh() @ weight


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(registry, "OPERANDS", dict(registry.OPERANDS))
    monkeypatch.setattr(rule_check, "_AGREED", set())
    for table in (registry.PHYSICAL, registry.DATA_OPERANDS):
        monkeypatch.delitem(table, product, raising=False)


def right(examples, dy, input, weight):
    return Outer(examples.sequences(input.tanh()), examples.sequences(dy))


def doubled(examples, dy, input, weight):
    return Outer(2 * examples.sequences(input.tanh()), examples.sequences(dy))


def omits_the_function(examples, dy, input, weight):
    return Outer(examples.sequences(input), examples.sequences(dy))


def batch_mean(examples, dy, input, weight):
    return Dense(right(examples, dy, input, weight).explicit().mean(0, keepdim=True).expand(examples.count, -1, -1))


def wrong_for_small_gradients(examples, dy, input, weight):
    gradients = right(examples, dy, input, weight).explicit()
    norms = gradients.flatten(1).norm(dim=1).view(-1, 1, 1)
    return Dense(gradients * (1 + (norms < 0.9 * norms.max())))


@dataclass
class Wrong:
    true: Outer
    wrong: str

    def squared_norms(self) -> Tensor:
        if self.wrong == "norms":  # sums of squared norms of positions, which ignores their inner products
            return (self.true.left.square().sum(2) * self.true.right.square().sum(2)).sum(1)
        return self.true.squared_norms()

    def explicit(self) -> Tensor:
        return (2 if self.wrong == "explicit" else 1) * self.true.explicit()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.true.weighted_sum(weights.flip(0) if self.wrong == "sums" else weights)


def wrong_in(result: str) -> Rule:
    def named(examples, dy, input, weight):
        return Wrong(right(examples, dy, input, weight), result)

    named.__name__ = named.__qualname__ = f"{result}_wrong"
    return named


def model() -> nn.Module:
    return Forward(lambda m, x: product(x, m.w), w=parameter(6, 4))


def clip_once(net: nn.Module, x: Tensor, engine=None) -> Tensor:
    return clipped_by(net, 0.5, squares, (x,), engine=engine, capture="eager").view(6, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_right_rule_passes_and_is_used(dtype: torch.dtype) -> None:
    used: list[int] = []

    def watched(examples, dy, input, weight):
        used.append(examples.count)
        return right(examples, dy, input, weight)

    rule(product)(watched)
    net, x = model().to(dtype), torch.randn(5, 3, 6).to(dtype)
    found, truth = clip_once(net, x), clipped_sum(net, squares, (x,), 0.5).sums["w"]
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5, torch.bfloat16: 1e-1}[dtype]
    assert float((found.double() - truth).norm()) <= tolerance * float(truth.norm())
    assert used == [5, 5], "once for the comparison"


WRONG = [doubled, omits_the_function, batch_mean, wrong_for_small_gradients]


@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("wrong", [*WRONG, *map(wrong_in, ("norms", "sums", "explicit"))], ids=lambda r: r.__name__)
def test_wrong_rule_is_refused_by_name(wrong: Rule, engine) -> None:
    rule(product)(wrong)
    with pytest.raises(PrivacyError, match=rf"{wrong.__name__} for weight of product differs from autograd by"):
        clip_once(model(), torch.randn(5, 3, 6), engine)


def test_non_finite_examples_neither_conceal_a_wrong_rule_nor_refuse_a_right_one(monkeypatch) -> None:
    net, x = model(), torch.randn(5, 3, 6)
    x[0], x[1, 0, 0], x[2] = float("nan"), float("inf"), 1e30
    with monkeypatch.context() as patch:
        patch.setattr(registry, "_RULES", dict(registry._RULES))
        rule(product)(omits_the_function)
        with pytest.raises(PrivacyError, match="differs from autograd"):
            clip_once(net, x)
    rule(product)(right)
    found = clip_once(net, x)
    torch.testing.assert_close(found.double(), clipped_sum(net, squares, (x,), 0.5).sums["w"], rtol=1e-4, atol=1e-5)


def test_a_batch_of_one_example_is_no_proof() -> None:
    rule(product)(batch_mean)
    net = model()
    clip_once(net, torch.randn(1, 3, 6))
    with pytest.raises(PrivacyError, match="differs from autograd"):
        clip_once(net, torch.randn(5, 3, 6))


def test_an_operation_that_mixes_examples_is_refused() -> None:
    def centred(input: Tensor, weight: Tensor) -> Tensor:
        if torch.overrides.has_torch_function((input, weight)):
            return torch.overrides.handle_torch_function(centred, (input, weight), input, weight)
        return (input - input.mean(0)) @ weight

    def of_weight(examples, dy, input, weight):
        return Outer(examples.sequences(input - input.mean(0)), examples.sequences(dy))

    rule(centred)(of_weight)
    with pytest.raises(PrivacyError, match="another output for all examples together"):
        clip_once(Forward(lambda m, x: centred(x, m.w), w=parameter(6, 4)), torch.randn(5, 3, 6))


def test_gradients_of_another_shape_are_refused() -> None:
    rule(product)(lambda examples, dy, input, weight: Dense(input))
    with pytest.raises(PrivacyError, match=r"gradients of shape \(5, 1, 3, 6\) for weight of shape \(6, 4\)"):
        clip_once(model(), torch.randn(5, 3, 6))


def test_a_call_that_the_rule_refuses_runs_in_vmap() -> None:
    def refusing(examples, dy, input, weight):
        raise ValueError("not this one")

    rule(product)(refusing)
    net, x = model(), torch.randn(5, 3, 6)
    truth = clipped_sum(net, squares, (x,), 0.5).sums["w"]
    torch.testing.assert_close(clip_once(net, x).double(), truth, rtol=1e-4, atol=1e-6)
