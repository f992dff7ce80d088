"""Embedding tables against autograd: repeated ids, the padding row, examples that are all padding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from noisette.core.forms import Examples
from noisette.core.registry import find_rule, rewrites
from noisette.rules.embedding import embedding_weight
from rule_oracle import by_autograd, by_autograd_at, check_form, double

B = 4

embedding_bag_weight = find_rule(F.embedding_bag, "weight")
embedding_bag_per_sample_weights = find_rule(F.embedding_bag, "per_sample_weights")


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
    for operand in (embedding_bag_weight, embedding_bag_per_sample_weights):
        with pytest.raises(ValueError, match="max_norm"):
            operand(Examples(B), dy[:, 0], ids, w, max_norm=1.0, per_sample_weights=dy[:, :, 0])
        with pytest.raises(ValueError, match="scale_grad_by_freq"):
            operand(Examples(B), dy[:, 0], ids, w, scale_grad_by_freq=True, per_sample_weights=dy[:, :, 0])


@pytest.mark.parametrize(
    ("axes", "examples"),
    [((6, B), Examples(B, 1)), ((6 * B,), Examples(B)), ((6 * B,), Examples(B, inner=True))],
    ids=["time first", "folded", "time first, folded"],
)
def test_examples_in_other_places(axes: tuple[int, ...], examples: Examples) -> None:
    ids, w, dy = torch.randint(0, 9, axes), double(9, 5), double(*axes, 5)
    form = embedding_weight(examples, dy, ids, w, 3)
    check_form(form, by_autograd_at(examples, lambda v: F.embedding(ids, v, 3), w, dy))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 3, -1])
def test_bags_of_one_length(padding: int | None, mode: str) -> None:
    ids, w, dy = torch.randint(0, 9, (B, 6)), double(9, 5), double(B, 5)
    ids[:, 1] = ids[:, 0]
    ids[-1] = 3
    settings = {"mode": mode, "padding_idx": padding}
    form = embedding_bag_weight(Examples(B), dy, ids, w, **settings)
    check_form(form, by_autograd(lambda v: F.embedding_bag(ids, v, **settings), w, dy, B))


def test_the_first_of_equal_maxima_gets_the_gradient() -> None:
    ids, w, dy = torch.tensor([[4, 1, 2], [0, 0, 5]]), torch.zeros(9, 5).double(), double(2, 5)
    form = embedding_bag_weight(Examples(2), dy, ids, w, mode="max")
    check_form(form, by_autograd(lambda v: F.embedding_bag(ids, v, mode="max"), w, dy, 2))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("starts", [[0, 2, 2, 7], [0, 0, 0, 0], [0, 1, 2, 10]], ids=str)
def test_bags_of_different_lengths(starts: list[int], last: bool, mode: str) -> None:
    ids, w, dy = torch.randint(0, 9, (10,)), double(9, 5), double(B, 5)
    settings = {
        "offsets": torch.tensor(starts + [10] * last),
        "mode": mode,
        "padding_idx": 2,
        "include_last_offset": last,
    }
    form = embedding_bag_weight(Examples(B), dy, ids, w, **settings)
    check_form(form, by_autograd(lambda v: F.embedding_bag(ids, v, **settings), w, dy, B))


def test_bags_without_an_id() -> None:
    ids, w, dy = torch.zeros(0).long(), double(9, 5), double(B, 5)
    form = embedding_bag_weight(Examples(B), dy, ids, w, torch.zeros(B).long())
    check_form(form, torch.zeros(B, 9, 5).double())


@pytest.mark.parametrize("examples", [Examples(B), Examples(B, inner=True)], ids=["folded", "inside"])
def test_several_bags_of_an_example(examples: Examples) -> None:
    ids, w, dy = torch.randint(0, 9, (3 * B, 6)), double(9, 5), double(3 * B, 5)
    form = embedding_bag_weight(examples, dy, ids, w)
    check_form(form, by_autograd_at(examples, lambda v: F.embedding_bag(ids, v), w, dy))


def test_bags_off_the_first_axis_are_refused() -> None:
    with pytest.raises(ValueError, match="the examples are on axis 1"):
        embedding_bag_weight(Examples(5, 1), double(B, 5), torch.zeros(B, 2).long(), double(9, 5))


@pytest.mark.parametrize("ragged", [False, True])
def test_ids_weighted_by_data(ragged: bool) -> None:
    ids, w, dy = torch.randint(0, 9, (10,) if ragged else (B, 6)), double(9, 5), double(B, 5)
    settings = {
        "offsets": torch.tensor([0, 2, 2, 7]) if ragged else None,
        "mode": "sum",
        "per_sample_weights": double(*ids.shape),
        "padding_idx": 2,
    }
    form = embedding_bag_weight(Examples(B), dy, ids, w, **settings)
    check_form(form, by_autograd(lambda v: F.embedding_bag(ids, v, **settings), w, dy, B))


@pytest.mark.parametrize("padding", [None, 2])
def test_weights_of_ids(padding: int | None) -> None:
    ids, w, shares, dy = torch.randint(0, 9, (B, 6)), double(9, 5), double(B, 6), double(B, 5)
    settings = {"mode": "sum", "padding_idx": padding}
    form = embedding_bag_per_sample_weights(Examples(B), dy, ids, w, per_sample_weights=shares, **settings)
    truth = by_autograd(lambda v: F.embedding_bag(ids, w, per_sample_weights=v, **settings), shares, dy, B)
    check_form(form, truth)


def test_weights_of_ids_in_ragged_bags_are_refused() -> None:
    ids = torch.zeros(6).long()
    with pytest.raises(ValueError, match="different lengths"):
        embedding_bag_per_sample_weights(
            Examples(2), double(2, 5), ids, double(9, 5), torch.tensor([0, 4]), per_sample_weights=double(6)
        )


def test_sparse_gradients_are_computed_dense() -> None:
    ids, w = torch.randint(0, 9, (B, 6)), double(9, 5).requires_grad_()
    for operation in (F.embedding, F.embedding_bag):
        rewritten = rewrites()[operation]
        assert rewritten(ids, w) is NotImplemented
        [gradient] = torch.autograd.grad(rewritten(ids, w, sparse=True).sum(), w)
        assert not gradient.is_sparse
        assert torch.equal(rewritten(ids, w, sparse=True), operation(ids, w))
