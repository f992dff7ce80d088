"""A model in double precision, of which nothing is left afterwards, also where two are examined at once."""

from __future__ import annotations

import threading

import torch
from torch import Tensor, nn

from noisette.validation.double_precision import in_double


def test_new_tensors_and_casts_are_in_double_precision() -> None:
    model = nn.Linear(3, 3)
    before = model(torch.ones(3))
    with in_double(model):
        made: list[Tensor] = [torch.zeros(3), torch.arange(3) / 2, torch.zeros(3).float(), model(torch.ones(3))]
        assert {tensor.dtype for tensor in made} == {torch.float64}
    assert torch.equal(model(torch.ones(3)), before)
    assert torch.zeros(1).dtype is torch.float32


def test_two_at_once_leave_the_default_type() -> None:
    """The default type is that of the process: two that restore it in turn would leave that of the other one."""
    first_is_within, second_is_within, first_has_left = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        with in_double(nn.Linear(3, 3)):
            first_is_within.set()
            second_is_within.wait(0.5)  # in vain
        first_has_left.set()

    def second() -> None:
        assert first_is_within.wait(10)
        with in_double(nn.Linear(3, 3)):
            second_is_within.set()
            assert first_has_left.wait(10)

    both = threading.Thread(target=first), threading.Thread(target=second)
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    left = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    assert left is torch.float32
