"""Embedding tables against autograd: repeated ids, the padding row, examples that are all padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from noisette.core.forms import REWRITES, Examples
from noisette.rules.attention import embedding_weight
from rule_oracle import by_autograd, check_form, double

B = 4


@pytest.mark.parametrize("shape", [(), (6,), (2, 3)])
@pytest.mark.parametrize("padding", [None, 0, 3, -1, -9])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32], ids=str)
def test_embedding(shape: tuple[int, ...], padding: int | None, kind: torch.dtype) -> None:
    ids = torch.randint(0, 9, (B, *shape))
    flat = ids.view(B, -1)
    flat[:, 1:3] = flat[:, :1]
    flat[-1] = 0 if padding is None else padding % 9
    ids = ids.to(kind)
    w, dy = double(9, 5), double(B, *shape, 5)
    truth = by_autograd(lambda v: F.embedding(ids, v, padding), w, dy, B)
    check_form(embedding_weight(Examples(B), dy, ids, w, padding), truth)
    if padding is not None:
        assert not truth[-1].any()


def test_settings_that_depend_on_the_whole_batch_are_refused() -> None:
    ids, w, dy = torch.zeros(B, 2).long(), double(9, 5), double(B, 2, 5)
    with pytest.raises(ValueError, match="max_norm"):
        embedding_weight(Examples(B), dy, ids, w, max_norm=1.0)
    with pytest.raises(ValueError, match="scale_grad_by_freq"):
        embedding_weight(Examples(B), dy, ids, w, scale_grad_by_freq=True)


def test_positions_merged_into_the_first_axis() -> None:
    ids, w, dy = torch.randint(0, 9, (6 * B,)), double(9, 5), double(6 * B, 5)
    form = embedding_weight(Examples(B), dy, ids, w, 3)
    check_form(form, by_autograd(lambda v: F.embedding(ids, v, 3), w, dy, B))


def test_sparse_gradients_are_computed_dense() -> None:
    ids, w = torch.randint(0, 9, (B, 6)), double(9, 5).requires_grad_()
    for operation in (F.embedding, F.embedding_bag):
        rewritten = REWRITES[operation]
        assert rewritten(ids, w) is NotImplemented
        [gradient] = torch.autograd.grad(rewritten(ids, w, sparse=True).sum(), w)
        assert not gradient.is_sparse
        assert torch.equal(rewritten(ids, w, sparse=True), operation(ids, w))
