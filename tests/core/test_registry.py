"""The table of rules refuses what would make it ambiguous."""

from __future__ import annotations

import pytest
import torch

from noisette.core.forms import match, named_arguments, rule


def test_second_rule_of_an_operand_is_refused() -> None:
    with pytest.raises(ValueError, match="has a rule for its operand 'weight' already"):
        rule(torch.nn.functional.linear, operand="weight")(lambda b, dy, input, weight, bias=None: None)


def test_rule_must_take_its_operand() -> None:
    with pytest.raises(ValueError, match="no operand 'other'"):
        rule(torch.hypot, operand="other")(lambda b, dy, input: None)


def test_named_arguments() -> None:
    x, w = torch.zeros(1), torch.zeros(1)
    assert list(named_arguments(torch.nn.functional.linear, (x, w), {"bias": None})) == ["input", "weight", "bias"]
    assert list(named_arguments(torch.addbmm, (x, w), {})) == ["argument 0", "argument 1"]
    assert match(torch.addbmm, (x, w), {}, [w]).operands[0].rule is None
