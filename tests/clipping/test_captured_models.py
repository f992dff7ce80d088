"""Captured steps of every kind of model: exact against single examples, equal to the step that is not captured."""

from __future__ import annotations

import pytest

from captured_check import check_equal, check_exact
from captured_models import MODELS


@pytest.mark.parametrize("name", MODELS)
def test_sums_are_those_of_single_examples(name: str) -> None:
    assert check_exact(MODELS[name]) <= 1e-10


@pytest.mark.parametrize("name", ["LeNet-5", "LSTM", "Transformer decoder", "VGG, public batch norm"])
def test_sums_are_those_of_the_step_itself(name: str) -> None:
    assert check_equal(MODELS[name]) <= 1e-5
