"""Operations whose output does not depend, in the autograd graph, on one of their data arguments.

No backward pass to the uses below such an argument goes through the operation. If it counted as above them, a hook on
its output would never be called and its gradient would be missing from the norms, while the second pass of ``TwoPass``
has it in the sum: one example would move the sum by more than its bound.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import wrap_torch_function

import noisette
from noisette.clipping.engines import BookKeeping, PerExampleLoop, TwoPass, TwoPasses
from noisette.clipping.per_example import PerExampleClip
from noisette.core.clip import Engine
from noisette.core.forms import Dense
from noisette.errors import MissingRuleError


def _gated(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x.detach() > 0)


gated = wrap_torch_function(lambda x, weight: (x, weight))(_gated)
gated_with_rule = wrap_torch_function(lambda x, weight: (x, weight))(lambda x, weight: weight * (x.detach() > 0))


@noisette.rule(gated_with_rule, operand="weight")
def _rule(examples, dy, x, weight):
    return Dense(dy * (x > 0))


class Hinge(nn.Module):
    """torch's own hinge_embedding_loss is not differentiable in its target."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = nn.Linear(3, 4), nn.Parameter(torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h + self.scale + 1000 * nn.functional.hinge_embedding_loss(self.scale, h, reduction="none")


class Gated(nn.Module):
    def __init__(self, operation) -> None:
        super().__init__()
        self.body, self.scale, self.operation = nn.Linear(3, 4), nn.Parameter(torch.rand(4) + 0.5), operation

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h + self.scale + 1000 * self.operation(h, self.scale)


def clipped(model: nn.Module, engine: Engine, x: Tensor) -> dict[str, Tensor]:
    clip = PerExampleClip(model, max_grad_norm=1.0, engine=engine)
    try:
        clip.backward(model(x).square().sum(1))
        [total] = clip.pop_sums()
        return dict(zip(clip.parameters, total.grads, strict=True))
    finally:
        clip.close()


def data(b: int) -> Tensor:
    return torch.randn(b, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 1


@pytest.mark.parametrize("engine", [BookKeeping(), TwoPass(), TwoPasses()])
def test_a_torch_operation_without_rule_is_refused(engine: Engine) -> None:
    with pytest.raises(MissingRuleError):
        clipped(Hinge().double(), engine, data(3))


@pytest.mark.parametrize("engine", [BookKeeping(), TwoPass(), TwoPasses()])
def test_a_wrapped_operation_without_rule_is_refused(engine: Engine) -> None:
    with pytest.raises(MissingRuleError):
        clipped(Gated(gated).double(), engine, data(3))


@pytest.mark.parametrize("operation", [gated, gated_with_rule])
def test_two_passes_keep_one_example_within_the_bound(operation) -> None:
    try:
        sums = clipped(Gated(operation).double(), TwoPass(), data(1))
    except MissingRuleError:
        return
    assert torch.cat([g.flatten() for g in sums.values()]).norm() <= 1.0


@pytest.mark.parametrize("engine", [BookKeeping(), TwoPass(), TwoPasses()])
def test_a_rule_of_the_user_gives_the_gradient(engine: Engine) -> None:
    model = Gated(gated_with_rule).double()
    truth = clipped(model, PerExampleLoop(), data(3))
    found = clipped(model, engine, data(3))
    for name, g in truth.items():
        assert torch.allclose(found[name], g, rtol=1e-9, atol=1e-12), name


def test_a_run_whose_first_microbatch_passed_the_checks_keeps_later_examples_within_the_bound() -> None:
    """The operation selects by value, so the checks of the first call do not see the missing gradient."""

    class Selects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.scale = nn.Linear(3, 4), nn.Parameter(torch.rand(4) + 0.5)

        def forward(self, x: Tensor) -> Tensor:
            h = self.body(x)
            target = torch.where(h.abs() > 100, 1.0, 0.0) * (1 + 0 * h)  # 1 marks what the loss compares
            return (
                h
                + self.scale
                + 1e6
                * nn.functional.hinge_embedding_loss(self.scale, target, reduction="none")
                * (h.detach().abs() > 100)
            )

    torch.manual_seed(0)
    model = Selects().double()
    clip = PerExampleClip(model, max_grad_norm=1.0, engine=TwoPass())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    records = torch.randn(20, 3, dtype=torch.float64)
    records[-1] = 1e4
    try:
        with noisette.privatize(
            clip,
            optimizer,
            (records,),
            expected_batch_size=1,
            sampling_rate=1.0,
            steps=1,
            noise_multiplier=1e-6,
            separability="asserted",
        ) as run:
            for batch in run.batches():
                for (x,) in batch.microbatches(10):
                    run.backward(model(x).sum(1))
                optimizer.step()
    except noisette.PrivacyError:
        return
    total = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
    assert total <= 20.1  # twenty examples, each within 1
