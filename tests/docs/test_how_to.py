"""The code of the page on rules runs, and its tests pass and can fail."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from noisette import PerExampleClip, PrivacyError
from noisette.core import forms as registry
from noisette.core.forms import Dense
from noisette.rules import rule_check
from oracle import clipped_sum
from page_code import blocks, names_of

BLOCKS = blocks("docs/how-to/add-a-rule.md")


@pytest.fixture
def names(monkeypatch):
    """Return what the first block of the page defines; its rule is removed from the registry afterwards."""
    for table in ("_RULES", "OPERANDS"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    for table in (registry.PHYSICAL, registry.DATA_OPERANDS):
        monkeypatch.delitem(table, torch.hypot, raising=False)
    monkeypatch.setattr(rule_check, "_AGREED", set())
    return names_of(BLOCKS[0])


def losses(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).square().sum((1, 2))


def test_worked_example_is_exact(names):
    model, x = names["model"].double(), torch.randn(5, 6, 4, dtype=torch.float64)
    truth, clip = clipped_sum(model, losses, (x,), 0.5), PerExampleClip(model, 0.5)
    clip.accumulate(losses, x)
    [total] = clip.pop_sums()
    clip.close()
    assert names["bounded"].grads[2].any()
    for name, g in zip(clip.parameters, total.grads, strict=True):
        torch.testing.assert_close(g, truth.sums[name], rtol=1e-10, atol=1e-12)


def test_tests_of_the_page_pass(names):
    exec(BLOCKS[1], names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def without_width(examples: Any, dy: Tensor, input: Tensor, other: Tensor) -> Dense:
    return Dense(examples.sequences(dy).sum(1))


def test_rule_that_is_wrong_fails_its_test_and_is_refused(names):
    exec(BLOCKS[1], names)
    names["hypot_other"] = without_width
    with pytest.raises(AssertionError):
        names["test_width_is_exact"]()
    with pytest.raises(AssertionError):
        names["test_width_of_two_axes_is_refused"]()
    registry._RULES[torch.hypot, "other"] = without_width
    clip = PerExampleClip(names["model"], 0.5)
    with pytest.raises(PrivacyError, match=r"without_width for other of hypot differs from autograd"):
        clip.accumulate(lambda model, x: model(x).square().sum(), torch.randn(5, 6, 4))
    assert not any(g.any() for part in clip.pop_sums() for g in part.grads)
    clip.close()
