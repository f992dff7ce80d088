"""Reports of explain on models."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from model_cases import CASES, Forward, Scaling, parameter
from noisette import explain


def test_lines_name_parameter_operation_rule_shape_and_cost() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    report = explain(model, torch.zeros(5, 3, 4, 4))
    assert [(u.parameter, u.operation, u.operand, u.rule) for u in report.uses] == [
        ("0.weight", "conv2d", "weight", "conv_weight"),
        ("0.bias", "conv2d", "bias", "conv_bias"),
        ("2.weight", "linear", "weight", "linear_weight"),
        ("2.bias", "linear", "bias", "linear_bias"),
    ]
    assert report.uses[0].shape == (5, 3, 4, 4)
    assert report.uses[0].per_example_numbers == 4 * 3 * 9
    assert report.problems == report.unused == ()


def test_unused_parameters() -> None:
    model = Forward(lambda m, x: m.layer(x), layer=nn.Linear(6, 4), spare=parameter(3))
    assert explain(model, torch.zeros(2, 6)).unused == ("spare",)


def test_derived_weights_name_their_parameter() -> None:
    model = Forward(lambda m, x: F.linear(x, m.packed[:4]), packed=parameter(8, 6))
    [use] = explain(model, torch.zeros(2, 6)).uses
    assert use.parameter.startswith("packed (")
    assert use.rule == "linear_weight"


def test_problems() -> None:
    model = Forward(
        lambda m, x: torch.hypot(m.norm(Scaling.apply(x, m.hidden)), m.slope),
        norm=nn.BatchNorm1d(6),
        hidden=parameter(6),
        slope=parameter(1),
    )
    problems = explain(model, torch.zeros(2, 6)).problems
    assert any("norm" in p and "BatchNorm1d mixes examples" in p for p in problems)
    assert any(p.startswith("slope: hypot has no rule") and "PerExampleLoop()" in p for p in problems)
    assert any(p.startswith("hidden: reaches the output through an operation that was not recorded") for p in problems)
    assert len(problems) == len(set(problems))


def test_an_output_without_trainable_parameters() -> None:
    model = Forward(lambda m, x: x, spare=parameter(3))
    assert explain(model, torch.zeros(2, 6)).problems == ("the output depends on no trainable parameter",)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_models_with_rules_have_no_problem(case) -> None:
    report = explain(case.model(), *case.inputs(3)[:1])
    assert report.problems == ()
    assert all(use.rule for use in report.uses)


def test_explain_does_not_change_the_model() -> None:
    model = nn.Linear(6, 4)
    with torch.no_grad():
        explain(model, torch.zeros(2, 6))
    with pytest.raises(RuntimeError):
        explain(model, torch.zeros(2, 5))
    assert not model._forward_hooks
    assert not torch.overrides._get_current_function_mode_stack()
