"""What PerExampleClip refuses, and what its messages name."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_check import ENGINES, NOT_FOR_VMAP
from model_cases import CASES, Case, Forward, Scaling, cross_entropy, mlp, parameter, squares
from noisette import MissingRuleError, PrivacyError
from noisette.clipping.engines import BookKeeping, MultiLoss, PerExampleLoop, TwoPass, TwoPasses, Vmap
from noisette.clipping.per_example import PerExampleClip
from noisette.core.clip import Engine

every_engine = pytest.mark.parametrize("engine", ENGINES, ids=lambda e: type(e).__name__)
rule_engines = pytest.mark.parametrize(
    "engine", [BookKeeping(), TwoPass(), TwoPasses()], ids=lambda e: type(e).__name__
)


def clipped(model: nn.Module, losses: Callable[[], Tensor], engine: Engine | None = None) -> Tensor:
    clip = PerExampleClip(model, 1.0, engine=engine)
    try:
        clip.backward(losses())
        [total] = clip.pop_sums()
    finally:
        clip.close()
    return torch.cat([g.flatten() for g in total.grads])


@rule_engines
def test_operation_without_a_rule_is_named_and_all_are_listed(engine: Engine) -> None:
    model = Forward(
        lambda m, x: torch.cdist(x, m.centres) * m.inner.square() + torch.hypot(x[:, :4], m.side),
        centres=parameter(4, 6),
        inner=parameter(4),
        side=parameter(4),
    )
    x = torch.randn(3, 6)
    with pytest.raises(MissingRuleError) as refusal:
        clipped(model, lambda: squares(model, x), engine)
    message = str(refusal.value)
    assert "2 uses" in message
    assert re.search(r"centres, .* of cdist: no rule", message)
    assert re.search(r"side, .* of hypot: no rule", message)
    for way_out in (PerExampleLoop(), MultiLoss(), Vmap()):
        assert f"noisette.engines.{type(way_out).__name__}()" in message
        assert clipped(model, lambda: squares(model, x), way_out).norm() > 0


@rule_engines
def test_custom_autograd_function_is_refused(engine: Engine) -> None:
    model = Forward(lambda m, x: m.layer(Scaling.apply(x, m.scale)), scale=parameter(6), layer=nn.Linear(6, 4))
    with pytest.raises(PrivacyError, match="outside the recorded forward pass: scale"):
        clipped(model, lambda: squares(model, torch.randn(3, 6)), engine)


@rule_engines
def test_penalty_on_the_parameters_is_refused(engine: Engine) -> None:
    model, x, y = mlp(), torch.randn(3, 6), torch.zeros(3).long()
    with pytest.raises(PrivacyError, match=r"2\.weight.*weight decay belongs to the optimizer"):
        clipped(model, lambda: cross_entropy(model, x, y) + model[2].weight.square().sum(), engine)


@every_engine
def test_losses_must_come_from_a_call_of_the_model(engine: Engine) -> None:
    model, x = mlp(), torch.randn(3, 6)
    for losses in (lambda: model.forward(x).sum(1), lambda: model[0](x).sum(1), lambda: x.sum(1) * model[0].bias.sum()):
        with pytest.raises(PrivacyError, match="do not come from a call of the model"):
            clipped(model, losses, engine)


@every_engine
def test_second_backward_of_one_call_is_refused(engine: Engine) -> None:
    model, x = mlp(), torch.randn(4, 6)
    clip = PerExampleClip(model, 1.0, engine=engine)
    losses = squares(model, x)
    clip.backward(losses)
    with pytest.raises(PrivacyError, match="before each backward"):
        clip.backward(losses)
    clip.close()


@every_engine
def test_scalar_and_matrix_losses_are_refused(engine: Engine) -> None:
    model, x, y = mlp(), torch.randn(3, 6), torch.zeros(3).long()
    with pytest.raises(PrivacyError, match='got a scalar: pass reduction="none"'):
        clipped(model, lambda: F.cross_entropy(model(x), y), engine)
    with pytest.raises(PrivacyError, match=r"got shape \(3, 4\)"):
        clipped(model, lambda: model(x), engine)


@every_engine
def test_forward_without_gradients_is_refused(engine: Engine) -> None:
    model, x = mlp(), torch.randn(3, 6)

    def losses() -> Tensor:
        with torch.no_grad():
            return squares(model, x)

    with pytest.raises(PrivacyError, match="no_grad"):
        clipped(model, losses, engine)


def contrastive(out: Tensor) -> Tensor:
    return F.cross_entropy(out @ out.t(), torch.arange(len(out)), reduction="none")


def centred(out: Tensor) -> Tensor:
    return (out - out.mean(0)).square().sum(1)


def softmax_over_the_batch(out: Tensor) -> Tensor:
    return out.softmax(0).square().sum(1)


def sorted_by_value(out: Tensor) -> Tensor:
    return (out.sum(1).sort().values - torch.arange(len(out))).square()


def ranked(out: Tensor) -> Tensor:
    return (out[:, 0] - out[:, 0].roll(1)).relu() + out.square().sum(1)


def half_of_the_next(out: Tensor) -> Tensor:
    return out[:, 0].square() + out[:, 1:].roll(1, 0).square().sum(1)


@every_engine
@pytest.mark.parametrize(
    "loss", [contrastive, centred, softmax_over_the_batch, sorted_by_value, ranked, half_of_the_next]
)
def test_losses_that_look_at_other_examples_are_refused(loss: Callable[[Tensor], Tensor], engine: Engine) -> None:
    model, x = mlp(), torch.randn(6, 6)
    with pytest.raises(PrivacyError, match="depends on the output of another example"):
        clipped(model, lambda: loss(model(x)), engine)


def test_losses_that_are_not_numbers_do_not_pass_for_a_check() -> None:
    model, x = mlp(), torch.randn(6, 6)
    clip = PerExampleClip(model, 1.0)
    clip.backward(contrastive(model(x * float("nan"))))
    with pytest.raises(PrivacyError, match="another example"):
        clip.backward(contrastive(model(x)))
    clip.close()


@rule_engines
def test_input_changed_in_place_is_refused(engine: Engine) -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        x = x.clone()
        h = torch.tanh(m.first(x))
        return m.second(h) + x.mul_(2)[:, :5]

    model = Forward(forward, first=nn.Linear(6, 5), second=nn.Linear(5, 5))
    with pytest.raises(RuntimeError, match=r"input of shape \(3, 6\) of linear was changed in place"):
        clipped(model, lambda: squares(model, torch.randn(3, 6)), engine)


@rule_engines
@pytest.mark.parametrize("setting", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_that_mix_are_refused(setting: dict, engine: Engine) -> None:
    model = Forward(lambda m, x: m.table(x), table=nn.Embedding(9, 4, **setting))
    with pytest.raises(MissingRuleError, match=next(iter(setting))):
        clipped(model, lambda: squares(model, torch.randint(0, 9, (3, 5))), engine)


@pytest.mark.parametrize("bound", [0, -1, float("nan"), float("inf")])
def test_bounds_that_bound_nothing(bound: float) -> None:
    model = mlp()
    with pytest.raises(ValueError, match="max_grad_norm"):
        PerExampleClip(model, bound)
    assert not model._forward_hooks


def test_model_with_nothing_to_train() -> None:
    model = mlp().requires_grad_(False)
    with pytest.raises(ValueError, match="no trainable parameter"):
        PerExampleClip(model, 1.0)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_model_is_as_it_was_after_close() -> None:
    model = mlp()
    attributes, keys = list(model.__dict__), list(model.state_dict())
    clip = PerExampleClip(model, 1.0)
    assert list(model.state_dict()) == keys
    clip.close()
    clip.close()
    assert list(model.__dict__) == attributes
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_refused_batch_leaves_nothing_pending() -> None:
    model, x = mlp(), torch.randn(3, 6)
    clip = PerExampleClip(model, 1.0)
    with pytest.raises(PrivacyError):
        clip.backward(model(x).sum())
    clip.backward(squares(model, x))
    [total] = clip.pop_sums()
    clip.close()
    expected = clipped(model, lambda: squares(model, x))
    torch.testing.assert_close(torch.cat([g.flatten() for g in total.grads]), expected)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
@every_engine
def test_autocast_forward_keeps_the_bound(engine: Engine) -> None:
    for case in CASES:
        if isinstance(engine, Vmap) and case.name in NOT_FOR_VMAP:
            continue
        model, inputs = case.model(), case.inputs(1)

        def losses(case: Case = case, model: nn.Module = model, inputs: tuple[Tensor, ...] = inputs) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return 100 * case.loss(model, *inputs).float()

        found = clipped(model, losses, engine).double()
        assert float(found.norm()) <= 1.0, case.name
        exact = clipped(model, lambda case=case, model=model, inputs=inputs: 100 * case.loss(model, *inputs)).double()
        assert float((found - exact).norm()) <= 0.1, case.name
