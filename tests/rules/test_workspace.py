"""Borrowed memory is one borrower's at a time."""

from __future__ import annotations

import pytest
import torch

from noisette.rules import _workspace
from noisette.rules._workspace import borrow
from noisette.rules.gradients import Outer, Written, kept


@pytest.fixture(autouse=True)
def _nothing_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_workspace, "_workspace", _workspace.Workspace())


def test_memory_is_used_again_after_it_is_given_back() -> None:
    loans = [borrow((3, 4), torch.zeros(1)) for _ in range(2)]
    addresses = {loan.data_ptr() for loan in loans}
    del loans
    assert borrow((4, 3), torch.zeros(1)).data_ptr() in addresses


def test_loans_that_live_never_share() -> None:
    loans = [borrow((3, 4), torch.zeros(1)) for _ in range(5)]
    assert len({loan.data_ptr() for loan in loans}) == 5


def test_memory_of_another_kind_or_size_is_left_alone() -> None:
    held = [borrow((100,), torch.zeros(1)) for _ in range(2)]
    addresses = {loan.data_ptr() for loan in held}
    del held
    others = [
        borrow((100,), torch.zeros(1, dtype=torch.float64)),
        borrow((101,), torch.zeros(1)),
        borrow((10,), torch.zeros(1)),
    ]
    assert not addresses & {tensor.data_ptr() for tensor in others}
    assert [tensor.numel() for tensor in others] == [100, 101, 10]


def test_half_of_what_was_lent_at_once_is_kept() -> None:
    loans = [borrow((8,), torch.zeros(1)) for _ in range(100)]
    del loans
    assert len(_workspace._workspace.free) == 50
    assert _workspace._workspace.lent == 0


def test_gradients_of_live_forms_stay_what_they_were() -> None:
    factors = [(torch.randn(2, 20, 4), torch.randn(2, 20, 3)) for _ in range(4)]
    forms = [kept(Outer(left, right)) for left, right in factors]
    for form, (left, right) in zip(forms, factors, strict=True):
        assert isinstance(form, Written)
        expected = torch.einsum("bto,bti->boi", left, right)
        for _ in range(3):
            kept(Outer(torch.randn(2, 20, 4), torch.randn(2, 20, 3)))
        torch.testing.assert_close(form.weighted_sum(torch.ones(2)), expected.sum(0), rtol=1e-5, atol=1e-5)
        handed_out = form.explicit()
        torch.testing.assert_close(handed_out, expected, rtol=1e-5, atol=1e-5)
        assert handed_out.data_ptr() != form.gradients.data_ptr()
