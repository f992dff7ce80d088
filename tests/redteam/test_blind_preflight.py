"""Models that couple examples where public inputs show nothing: not finite, without gradient, other values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from asserted_loop import AssertedLoop, Custom, records
from noisette import PrivacyError
from oracle import example_gradients


def centred(x: Tensor) -> Tensor:
    return x - x.mean(0)


def slightly(h: Tensor) -> Tensor:
    """Within the rounding of single precision as the preflight allows for it; weights can learn to enlarge it."""
    return h + 1e-5 * centred(h)


def slightly_in_the_gradient(h: Tensor) -> Tensor:
    return h + 1e-4 * (h.mean(0) - h.mean(0).detach())


def model(function) -> Custom:
    torch.manual_seed(0)
    return Custom(function, first=nn.Linear(6, 5), second=nn.Linear(5, 3))


BLIND = {
    "logarithm": lambda m, x: m.second(centred(m.first(x.log()))),
    "square root": lambda m, x: m.second(centred(m.first(x.sqrt()))),
    "arc sine": lambda m, x: m.second(centred(m.first((x / 2).asin()))),
    "dead units": lambda m, x: m.second(torch.relu(centred(m.first(x)) - 50)),
    "nothing for small sums": lambda m, x: m.second(centred(m.first(x)) * (x.sum() > 1e6)),
    "positive inputs alone": lambda m, x: m.second(centred(m.first(x)) if (x > 0).all() else m.first(x)),
    "whole numbers alone": lambda m, x: m.second(centred(m.first(x)) if (x == x.round()).all() else m.first(x)),
    "a little": lambda m, x: m.second(slightly(m.first(x))),
    "a little in the gradient": lambda m, x: m.second(slightly_in_the_gradient(m.first(x))),
    "never finite": lambda m, x: m.second(centred(m.first((x - 1e4).log()))),
}


@pytest.mark.parametrize("function", BLIND.values(), ids=BLIND)
def test_refused_in_the_first_step(function) -> None:
    loop = AssertedLoop(model(function), records(6, positive=True))
    with pytest.raises(PrivacyError):
        loop.train()
    assert loop.steps_taken == 0


def test_such_a_model_would_let_one_record_move_the_others() -> None:
    """The attack is real: another last record changes the gradient of the first."""
    x, _ = records(6, positive=True)
    attacked = model(BLIND["logarithm"]).double()
    rows = []
    for last in (1.0, 30.0):
        changed = x.double().clone()
        changed[-1] = last
        rows.append(torch.autograd.grad(attacked(changed)[0].sum(), attacked.first.weight)[0])
    assert (rows[0] - rows[1]).norm() > 0.5


def test_a_model_that_is_never_finite_is_shown_the_example() -> None:
    with pytest.raises(PrivacyError, match=r"its outputs are never finite\. .*example=public_record"):
        AssertedLoop(model(BLIND["never finite"]), records(6, positive=True)).train()


HARMLESS = {
    "logarithm": lambda m, x: m.second(m.first(x.log())),
    "square root": lambda m, x: m.second(m.first(x.sqrt())),
    "logarithm of far numbers": lambda m, x: m.second(m.first((x + 1e-3).log()).tanh()),
}


@pytest.mark.parametrize("function", HARMLESS.values(), ids=HARMLESS)
def test_harmless_models_of_positive_numbers_train_exactly(function) -> None:
    loop = AssertedLoop(model(function), records(6, positive=True)).train(compare=True)
    assert max(loop.errors) < 1e-4


def far_away(m: Custom, x: Tensor) -> Tensor:
    return m.second(m.first((x - 1e3).log()))


def test_an_example_shows_the_range() -> None:
    x, y = records(6, positive=True)
    loop = AssertedLoop(model(far_away), (x + 1001, y), example=torch.full((2, 6), 1003.0))
    assert max(loop.train(compare=True).errors) < 1e-4
    coupled = model(lambda m, x: m.second(centred(m.first((x - 1e3).log()))))
    with pytest.raises(PrivacyError):
        AssertedLoop(coupled, (x + 1001, y), example=torch.tensor([[1003.0] * 6, [1005.0] * 6])).train()


def ends(m: Custom, ids: Tensor) -> Tensor:
    """Reads the state at the end token, which each sequence must have."""
    if not (ids == 9).any(1).all():
        raise ValueError("a sequence has no end")
    states = m.words(ids)
    return m.out(states[torch.arange(len(ids)), (ids == 9).int().argmax(1)] + states.mean(1))


@pytest.mark.parametrize(
    "example",
    [
        torch.tensor([3, 1, 9]),
        torch.tensor([[3, 1, 9], [2, 9, 4]]),
        (torch.tensor([[3, 1, 9]]),),
        {"ids": torch.tensor([[3, 1, 9]])},
    ],
    ids=["a record", "a batch", "a tuple", "keyword arguments"],
)
def test_rules_on_tokens_are_met_by_an_example(example) -> None:
    torch.manual_seed(1)
    ids = torch.randint(0, 9, (8, 5))
    ids[:, -1] = 9
    parts = {"words": nn.Embedding(10, 4), "out": nn.Linear(4, 3)}
    by_name = isinstance(example, dict)
    asked = Custom((lambda m, *, ids: ends(m, ids)) if by_name else ends, **parts)
    scores = (lambda m, ids: m(ids=ids)) if by_name else (lambda m, ids: m(ids))
    loop = AssertedLoop(asked, (ids, torch.arange(8) % 3), scores, example=example)
    assert max(loop.train(compare=True).errors) < 1e-4
    loop.example = None
    with pytest.raises(PrivacyError, match=r"the model fails on all of them: a sequence has no end.*example="):
        loop.train()


def test_the_numbers_of_the_oracle_are_its_own() -> None:
    x, y = records(6)
    linear = nn.Linear(6, 3)
    found = example_gradients(linear, lambda m, x, y: nn.functional.cross_entropy(m(x), y, reduction="none"), (x, y))
    assert len(found.norms) == len(x)
