"""What a few steps on made-up examples show of a model and a loss, and what they leave as it was."""

import pytest
import torch
from torch import Tensor, nn

from noisette import LipschitzBound, explain
from noisette.nn.lipschitz import BoundedInput, SpectralLinear, TauCrossEntropy
from small_loop import loss

X, Y = torch.randn(6, 4), torch.arange(6) % 3


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def test_each_use_has_its_rule_and_the_cost_is_measured():
    found = explain(net(), loss, X, Y)
    of_first = ("0.weight", "linear_weight", 20), ("0.bias", "linear_bias", 5)
    of_last = ("2.weight", "linear_weight", 15), ("2.bias", "linear_bias", 3)
    assert [(u.parameter, u.rule, u.per_example_numbers) for u in found.uses] == [*of_first, *of_last]
    assert (found.refused, found.one_by_one, found.unreached) == ((), "", ())
    assert found.cost.examples == 6
    assert min(found.cost.private_seconds, found.cost.plain_seconds) > 0


@pytest.mark.filterwarnings("ignore:the loss counts:UserWarning")
def test_weights_buffers_and_random_states_stay_as_they_are():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3).eval(), nn.Dropout(0.5))
    model.register_buffer("calls", torch.zeros(()))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)

    def counting(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        model.get_buffer("calls").add_(1)
        return loss(model, x, y)

    explain(model, counting, X, Y)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.rand(2), expected)
    assert all(p.grad is None for p in model.parameters())
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def largest(x: Tensor) -> float:
    return x.abs().max().item()


def places(x: Tensor) -> int:
    return len(x.nonzero())


def test_a_value_of_an_example_is_named_with_its_innermost_line():
    counted = explain(
        net(), lambda model, x, y: loss(model, x, y) * places(x), torch.ones(len(X), *X.shape[1:]).tril(), Y
    )
    assert counted.line.endswith(": return len(x.nonzero())")
    found = explain(net(), lambda model, x, y: loss(model, x / largest(x), y), X, Y)
    assert found.uses == ()
    assert found.line.endswith(": return x.abs().max().item()")
    assert f"{__file__}:" in found.line
    assert "one example as a Python number" in found.one_by_one
    assert explain(net(), lambda model, x, y: loss(model, x / x.abs().max(), y), X, Y).one_by_one == ""


def test_a_parameter_that_no_example_reaches_is_named():
    model = net()
    model.spare = nn.Parameter(torch.zeros(3))
    assert explain(model, loss, X, Y).unreached == ("spare",)
    model.spare.requires_grad_(False)
    assert explain(model, loss, X, Y).unreached == ()


def test_a_lipschitz_bound_has_its_layers():
    tau = TauCrossEntropy(tau=1.0)
    model = nn.Sequential(BoundedInput(2.0), SpectralLinear(4, 3))
    bound = LipschitzBound(model, loss=tau, input_shape=(4,), slack=0.0)
    found = explain(bound, lambda model, x, y: tau(model(x), y), X, Y)
    assert [line.name for line in found.bounds] == ["0", "1"]
    assert found.bounds[1].sensitivities["1.weight"] == pytest.approx(2 * 2**0.5)
    assert found.cost.private_seconds > 0
