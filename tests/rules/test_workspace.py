"""Borrowed memory is one owner's at a time."""

from __future__ import annotations

import gc

import pytest
import torch

from noisette.rules import _workspace
from noisette.rules._workspace import borrow
from noisette.rules.gradients import Outer


class Owner:
    pass


@pytest.fixture(autouse=True)
def _nothing_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workspace, "_free", [])


def test_memory_is_used_again_after_its_owner() -> None:
    owner = Owner()
    first = borrow(owner, (3, 4), torch.zeros(1)).data_ptr()
    del owner
    gc.collect()
    assert borrow(Owner(), (4, 3), torch.zeros(1)).data_ptr() == first


def test_owners_that_live_never_share() -> None:
    owners = [Owner() for _ in range(5)]
    assert len({borrow(owner, (3, 4), torch.zeros(1)).data_ptr() for owner in owners}) == 5


def test_memory_of_another_kind_or_size_is_left_alone() -> None:
    owner = Owner()
    first = borrow(owner, (100,), torch.zeros(1)).data_ptr()
    del owner
    gc.collect()
    kept = [Owner() for _ in range(3)]
    others = [
        borrow(kept[0], (100,), torch.zeros(1, dtype=torch.float64)),
        borrow(kept[1], (101,), torch.zeros(1)),
        borrow(kept[2], (10,), torch.zeros(1)),
    ]
    assert first not in {tensor.data_ptr() for tensor in others}
    assert [tensor.numel() for tensor in others] == [100, 101, 10]


def test_few_buffers_are_kept() -> None:
    owners = [Owner() for _ in range(100)]
    for owner in owners:
        borrow(owner, (8,), torch.zeros(1))
    del owner, owners
    gc.collect()
    assert len(_workspace._free) <= 16


def test_gradients_of_live_forms_stay_what_they_were() -> None:
    forms = [Outer(torch.randn(2, 20, 4), torch.randn(2, 20, 3)) for _ in range(4)]
    for _ in range(2):
        for form in forms:
            expected = torch.einsum("bto,bti->boi", form.left, form.right)
            form.squared_norms()
            for _ in range(3):
                Outer(torch.randn(2, 20, 4), torch.randn(2, 20, 3)).squared_norms()
            torch.testing.assert_close(form.weighted_sum(torch.ones(2)), expected.sum(0), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(form.explicit(), expected, rtol=1e-5, atol=1e-5)
