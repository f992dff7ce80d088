"""Operands of ``einsum`` against autograd."""

from __future__ import annotations

import pytest
import torch

from noisette.core.forms import REWRITES, Examples, find_rule, named_arguments
from rule_oracle import by_autograd, check_form, double

B = 4


def check(operation, args: tuple, names: tuple[str | None, ...], settings: dict) -> None:
    """Each named operand against autograd; operands without a name are skipped."""
    dy = torch.randn_like(operation(*args, **settings))
    for k, name in enumerate(names):
        if name is not None:
            rule = find_rule(operation, name)
            assert rule is not None
            form = rule(Examples(B), dy, **named_arguments(operation, args, settings))
            check_form(
                form,
                by_autograd(lambda v, k=k: operation(*args[:k], v, *args[k + 1 :], **settings), args[k], dy, B),
            )


@pytest.mark.parametrize(
    ("args", "names"),
    [
        (("io,bti->bto", double(3, 5), double(B, 2, 3)), (None, "first")),
        (("bti,io->bto", double(B, 2, 3), double(3, 5)), (None, None, "second")),
        (("bti,io,ko->btk", double(B, 2, 3), double(3, 5), double(4, 5)), (None, None, "second", "third")),
        (
            ("bi,i,ko,i->bko", double(B, 3), double(3), double(4, 5), double(3)),
            (None, None, "second", "third", "fourth"),
        ),
    ],
)
def test_operands_of_einsum(args: tuple, names: tuple[str | None, ...]) -> None:
    check(torch.einsum, args, names, {})


def test_operands_of_einsum_in_a_list_are_passed_one_by_one() -> None:
    rewritten = REWRITES[torch.einsum]
    x, w = double(B, 3), double(3, 5)
    assert rewritten("bi,io->bo", x, w) is NotImplemented
    torch.testing.assert_close(rewritten("bi,io->bo", [x, w]), x @ w)
    torch.testing.assert_close(rewritten("bi,io->bo", (x, w)), x @ w)
