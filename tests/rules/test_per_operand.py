"""One function as the rule of several operands."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from noisette.core import forms as registry
from noisette.core.forms import Dense, Examples, find_rule, match, rule_per_operand


def hypot(operand: str, examples: Examples, dy: Tensor, input: Tensor, other: Tensor) -> Dense:
    return Dense(dy * (input if operand == "input" else other) / torch.hypot(input, other))


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))
    monkeypatch.setattr(registry, "_OPERANDS", dict(registry._OPERANDS))


def test_each_operand_has_a_rule_of_its_own_name() -> None:
    assert rule_per_operand(torch.hypot, operands=("input", "other"))(hypot) is hypot
    x, y = torch.tensor([3.0]), torch.tensor([4.0])
    assert [operand.name for operand in match(torch.hypot, (x, y), {}, [x, y]).operands] == ["input", "other"]
    for operand, expected in (("input", 0.6), ("other", 0.8)):
        found = find_rule(torch.hypot, operand)
        assert found is not None
        assert (found.__module__, found.__name__) == (__name__, f"hypot_{operand}")
        assert found(Examples(1), torch.ones(1), x, y).explicit().item() == pytest.approx(expected)


def test_operand_that_the_function_does_not_take_is_refused() -> None:
    with pytest.raises(ValueError, match="rule hypot_third takes input, other; it has no operand 'third'"):
        rule_per_operand(torch.hypot, operands=("third",))(hypot)
