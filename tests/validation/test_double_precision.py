"""A model in double precision: new tensors and constants with it, and nothing outside of the thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from noisette.validation.double_precision import in_double

WHOLE = torch.arange(1, 4)
CONSTANT = torch.eye(3)  # no buffer of the model


@pytest.fixture
def model() -> nn.Module:
    return nn.Linear(3, 3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3),
        lambda: torch.tensor([1.5]),
        lambda: torch.randn(3),
        lambda: torch.linspace(0, 1, 3),
        lambda: torch.zeros(3, dtype=torch.float16),
        lambda: WHOLE / 2,
        lambda: WHOLE * 0.5,
        lambda: WHOLE.sqrt(),
        lambda: WHOLE.float().mean(),
        lambda: WHOLE.to(torch.float32),
        lambda: torch.where(WHOLE > 1, 1.0, 0.0),
        lambda: torch.zeros(3).softmax(0, dtype=torch.float32),
        lambda: torch.ones(3) @ torch.Tensor(3, 3).zero_(),
        lambda: torch.ones(3) @ CONSTANT.t(),
        lambda: nn.Linear(3, 3).weight,
    ],
)
def test_what_is_computed_is_in_double_precision(make: Callable[[], Tensor], model: nn.Module) -> None:
    with in_double(model):
        assert make().dtype is torch.float64


def test_complex_numbers_are_too(model: nn.Module) -> None:
    with in_double(model):
        assert (WHOLE * 1j).dtype is torch.fft.rfft(torch.ones(3)).dtype is torch.complex128


def test_what_is_changed_in_place_keeps_its_type(model: nn.Module) -> None:
    kept = torch.zeros(3)
    with in_double(model):
        kept += torch.ones(3)
        kept[0] = torch.tensor(5.0)
        kept.mul_(torch.full((3,), 2.0))
    assert kept.tolist() == [10.0, 2.0, 2.0]
    assert kept.dtype is torch.float32


def test_the_model_is_as_it_was_and_other_threads_notice_nothing(model: nn.Module) -> None:
    before, seen = model(torch.ones(3)), []
    with in_double(model):
        other = threading.Thread(target=lambda: seen.append(torch.zeros(1).dtype))
        other.start()
        other.join()
        assert next(model.parameters()).dtype is torch.float64
    assert seen == [torch.float32]
    assert torch.equal(model(torch.ones(3)), before)
