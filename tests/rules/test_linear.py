"""Linear layers, products and sums of tensors against autograd, and factors in bfloat16 against double precision."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette.clipping.engines import BookKeeping, ReweightGP
from noisette.core.clip import Engine
from noisette.core.forms import AS_COMPUTED, REWRITES, Dense, Examples, Outer
from noisette.rules.linear import (
    BrainOuter,
    GroupedOuter,
    factor_gradients,
    linear_bias,
    linear_weight,
    matmul_other,
    split,
    unbroadcast,
    unbroadcast_channels,
)
from noisette.run.per_example import PerExampleClip
from rule_oracle import by_autograd, check_form, double

B = 4
AXES = [(), (3,), (2, 3)]


@pytest.mark.parametrize("between", AXES)
def test_linear(between: tuple[int, ...]) -> None:
    x, w, bias, dy = double(B, *between, 5), double(6, 5), double(6), double(B, *between, 6)
    check_form(linear_weight(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, v, bias), w, dy, B))
    check_form(linear_bias(Examples(B), dy, x, w, bias), by_autograd(lambda v: F.linear(x, w, v), bias, dy, B))


@pytest.mark.parametrize("between", AXES)
def test_matrix_product(between: tuple[int, ...]) -> None:
    x, w, dy = double(B, *between, 5), double(5, 6), double(B, *between, 6)
    check_form(matmul_other(Examples(B), dy, x, w), by_autograd(lambda v: x @ v, w, dy, B))


def test_reflected_product_keeps_its_order() -> None:
    x, w = double(B, 5), double(3, B)
    assert torch.equal(REWRITES[torch.Tensor.__rmatmul__](x, w), w @ x)


def test_linear_with_a_vector() -> None:
    x, w, dy = double(B, 3, 5), double(5), double(B, 3)
    check_form(linear_weight(Examples(B), dy, x, w), by_autograd(lambda v: F.linear(x, v), w, dy, B))


X = (B, 3, 5)


@pytest.mark.parametrize("shape", [(), (5,), (1,), (3, 5), (3, 1), (1, 5), (1, 3, 5), (1, 1, 1)])
@pytest.mark.parametrize("b", [B, 2])
def test_sums_over_what_was_broadcast(b: int, shape: tuple[int, ...]) -> None:
    """With two examples, the first axis holds two positions of each."""
    x, p, dy = double(*X), double(*shape), double(*X)
    check_form(unbroadcast(Examples(b), dy, p), by_autograd(lambda v: torch.add(x, v), p, dy, b))


@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
def test_channels(places: tuple[int, ...]) -> None:
    x, p, dy = double(B, 6, *places), double(6), double(B, 6, *places)
    aligned = [-1, *[1] * len(places)]
    check_form(unbroadcast_channels(Examples(B), dy, p), by_autograd(lambda v: x + v.view(aligned), p, dy, B))


@pytest.mark.parametrize(
    ("equation", "shapes", "place", "form"),
    [
        ("bi,io->bo", [(B, 3), (3, 5)], 1, Outer),
        ("bti,oi->bto", [(B, 2, 3), (5, 3)], 1, Outer),
        ("oi,bti->bto", [(5, 3), (B, 2, 3)], 0, Outer),
        ("...i,oi->...o", [(B, 2, 7, 3), (5, 3)], 1, Outer),
        ("bsi,io->bo", [(B, 6, 3), (3, 5)], 1, Outer),
        ("bti,hio->bhto", [(B, 2, 3), (6, 3, 5)], 1, GroupedOuter),
        ("bhti,hio->bhto", [(B, 6, 2, 3), (6, 3, 5)], 1, GroupedOuter),
        ("bhti,oih->bhto", [(B, 6, 2, 3), (5, 3, 6)], 1, GroupedOuter),
        ("b...i,...io->b...o", [(B, 2, 7, 3), (7, 3, 5)], 1, GroupedOuter),
        ("bi,oij,bj->bo", [(B, 3), (4, 3, 5), (B, 5)], 1, GroupedOuter),
        ("bti,oij,btj->bto", [(B, 2, 3), (4, 3, 5), (B, 2, 5)], 1, GroupedOuter),
        ("bti,oij,btj->bto", [(B, 9, 3), (4, 3, 5), (B, 9, 5)], 1, Dense),
        ("cio,bi->bco", [(2, 3, 5), (B, 3)], 0, GroupedOuter),
        ("bi,i->bi", [(B, 3), (3,)], 1, Dense),
        ("bti,i->bt", [(B, 2, 3), (3,)], 1, Dense),
        ("bi,ij->b", [(B, 3), (3, 4)], 1, Dense),  # only the weight has j
        ("bi,ijk->bj", [(B, 3), (3, 4, 6)], 1, Dense),
        ("b...i,...io->b...o", [(B, 2, 7, 3), (1, 3, 5)], 1, Dense),
        ("b...i,...io->b...o", [(B, 2, 7, 3), (2, 1, 3, 5)], 1, Dense),
        ("bi,io->bo", [(B, 1), (3, 5)], 1, Dense),  # the data is broadcast
        ("bi,io->bo", [(B, 3), (1, 5)], 1, Dense),  # the weight is broadcast
        ("bii,i->b", [(B, 3, 3), (3,)], 1, Dense),
        ("bto,ti,io->bo", [(B, 2, 5), (2, 3), (3, 5)], 1, Dense),
        ("bto,ti,io->bo", [(B, 2, 5), (2, 3), (3, 5)], 2, Dense),
    ],
)
def test_factor(equation: str, shapes: list[tuple[int, ...]], place: int, form: type) -> None:
    tensors = [double(*shape) for shape in shapes]
    dy = torch.randn_like(torch.einsum(equation, *tensors))

    def output(weight: torch.Tensor) -> torch.Tensor:
        return torch.einsum(equation, *tensors[:place], weight, *tensors[place + 1 :])

    found = factor_gradients(Examples(B), dy, equation, tensors, place)
    check_form(found, by_autograd(output, tensors[place], dy, B))
    assert type(found) is form


@pytest.mark.parametrize("shape", [(B, 3), (1, 3)])
def test_a_weight_that_holds_the_examples_and_a_diagonal_of_one_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="takes a diagonal of a weight"):
        factor_gradients(Examples(B), double(B), "bi,ii->b", [double(B, 3), double(3, 3)], 1)
    with pytest.raises(ValueError, match=f"a weight holds the {B} examples"):
        factor_gradients(Examples(B), double(B, 3), "bi,bi->bi", [double(B, 3), double(*shape)], 1)


def factors(t: int, o: int, i: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(t * o + i)
    return tuple(torch.randn(5, t, n, generator=made).bfloat16() for n in (o, i))  # type: ignore[return-value]


@pytest.mark.parametrize(("t", "o", "i"), [(1, 4, 3), (3, 8, 8), (20, 3, 4), (2, 1, 1)])
def test_norms_and_sums_are_those_of_double_precision(t: int, o: int, i: int) -> None:
    left, right = factors(t, o, i)
    form, weights = BrainOuter(left, right), torch.rand(5, generator=torch.Generator().manual_seed(1))
    each = [left[k].double().t() @ right[k].double() for k in range(5)]
    squares = torch.stack([g.square().sum() for g in each])
    found = form.squared_norms().double()
    torch.testing.assert_close(found, squares, rtol=2e-5, atol=1e-6)
    assert found.dtype is torch.float64
    exact = sum(float(w) * g for w, g in zip(weights, each, strict=True))
    scale = sum(float(g.norm()) for g in each)
    assert float((form.weighted_sum(weights).double() - exact).norm()) <= 1e-6 * scale
    assert float((form.select(slice(1, 3)).explicit().double() - torch.stack(each[1:3])).norm()) <= 1e-5 * scale


def test_terms_hold_all_digits() -> None:
    numbers = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(-20, 20).repeat(25)
    assert torch.equal(torch.stack([term.double() for term in split(numbers)]).sum(0), numbers.double())


def test_positions_that_cancel_leave_nothing_behind() -> None:
    """Two terms would leave 2^-17 of the factors: here more than the whole gradient."""
    left = torch.tensor([[[1.0], [1.0], [2.0**-20]]]).bfloat16()
    right = torch.tensor([[[1.0], [-1.0], [1.0]]]).bfloat16()
    found = BrainOuter(left, right).weighted_sum(torch.tensor([1 / 3]))
    torch.testing.assert_close(found.item(), 2.0**-20 / 3, rtol=0.1, atol=0)


@pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)
def test_a_pass_in_bfloat16_keeps_its_factors(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layers = [layer for sizes in ((6, 8), (8, 8), (8, 3)) for layer in (nn.Linear(*sizes), nn.Tanh())]
    model, x, sums = nn.Sequential(*layers), torch.randn(7, 5, 6), []
    made: list[BrainOuter] = []
    norms = BrainOuter.squared_norms

    def watched(self: BrainOuter) -> Tensor:
        made.append(self)
        return norms(self)

    monkeypatch.setattr(BrainOuter, "squared_norms", watched)
    for keeps in (True, False):
        with monkeypatch.context() as patch:
            if not keeps:
                patch.setitem(AS_COMPUTED, linear_weight, lambda dy, arguments: False)
            clip = PerExampleClip(model, 0.1, engine=engine, capture="eager")
            with torch.autocast("cpu", torch.bfloat16):
                clip.accumulate(lambda model, x: model(x).float().square().sum(), x)
            sums.append(torch.cat([g.flatten() for g in clip.pop_sums()[0].grads]))
        assert bool(made) == keeps
        made.clear()
    assert float((sums[0] - sums[1]).norm()) <= 1e-6 * float(sums[1].norm())
