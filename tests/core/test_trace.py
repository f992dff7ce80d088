"""What is recorded of a loss: uses in order, derived weights, constants, and weights on a way that was not seen."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack as modes

from forward_pass import recorded_losses
from model_cases import Forward, mlp, parameter, squares
from noisette.core.backward import search
from noisette.core.forms import match, named_arguments, rule
from noisette.core.trace import ForwardPass
from noisette.core.vmap import current_level
from noisette.errors import PrivacyError

X = torch.randn(3, 6)


def recorded(model: nn.Module, loss: Callable[..., Tensor] = squares, x: Tensor = X) -> ForwardPass:
    return recorded_losses(model, loss, x)


def operations(found: ForwardPass) -> list[str]:
    return [use.operation.__name__.strip("_") for use in found.recording.uses]


def test_uses_are_in_order_with_their_weights_and_all_examples() -> None:
    model = mlp()
    found = recorded(model)
    assert operations(found) == ["linear"] * 3
    first = found.recording.uses[0]
    assert [id(weight) for weight in first.weights] == [id(model[0].weight), id(model[0].bias)]
    assert [use.shape[0] for use in found.recording.uses] == [3] * 3
    torch.testing.assert_close(found.losses, squares(model, X))


def test_frozen_parameters_are_constants() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    assert len(recorded(model).recording.uses) == 2


def test_derived_weights_and_constants() -> None:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return x * (m.w * m.mask)[1] + m.table[torch.arange(6) * 2]

    model = Forward(forward, w=parameter(2, 6), mask=torch.ones(2, 6), table=parameter(12))
    found = recorded(model)
    assert [weight.parents for weight in found.recording.derived.values()] == [(model.w,), (model.w,), (model.table,)]
    assert {id(w) for use in found.recording.uses for w in use.weights} <= found.recording.derived.keys()


def test_a_weight_that_autograd_alone_has_seen_is_uncovered() -> None:
    def hidden(m: Forward, x: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            return m.a(x)

    model = Forward(lambda m, x: m.b(hidden(m, x)), a=nn.Linear(6, 6), b=nn.Linear(6, 2))
    found = recorded(model)
    uncovered = search(found.losses, found.recording.uses, dict(model.named_parameters())).uncovered
    assert uncovered == ("a.bias", "a.weight")


def test_an_error_inside_leaves_no_recording() -> None:
    model = mlp()
    with pytest.raises(RuntimeError):
        recorded(model, x=torch.randn(3, 5))
    with pytest.raises(PrivacyError, match="tensor with one value"):
        recorded(model, lambda model, x: model(x))
    assert modes() == []
    assert current_level() is None
    assert operations(recorded(model)) == ["linear"] * 3


def test_a_second_rule_of_an_operand_and_one_of_none_are_refused() -> None:
    with pytest.raises(ValueError, match="no operand 'other'"):
        rule(torch.hypot, operand="other")(lambda b, dy, input: None)
    with pytest.raises(ValueError, match="has a rule for its operand 'weight' already"):
        rule(torch.nn.functional.linear, operand="weight")(lambda b, dy, input, weight, bias=None: None)


def test_named_arguments() -> None:
    x, w = torch.zeros(1), torch.zeros(1)
    assert list(named_arguments(torch.nn.functional.linear, (x, w), {"bias": None})) == ["input", "weight", "bias"]
    assert list(named_arguments(torch.addbmm, (x, w), {})) == ["argument 0", "argument 1"]
    assert match(torch.addbmm, (x, w), {}, [w]).operands[0].rule is None
