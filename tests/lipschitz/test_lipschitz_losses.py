"""Lipschitz losses against formulas in plain Python, and their constants against ascent over the scores."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from noisette.nn import lipschitz as lip

Scores = list[float]


def tau_cross_entropy(tau: float) -> Callable[[Scores, int], float]:
    return lambda z, y: (math.log(sum(math.exp(tau * s) for s in z)) - tau * z[y]) / tau


def tau_bce(tau: float) -> Callable[[Scores, int], float]:
    return lambda z, y: math.log(1 + math.exp(-tau * (z[0] if y else -z[0]))) / tau


def huber(delta: float) -> Callable[[Scores, int], float]:
    return lambda z, y: (z[0] - y) ** 2 / 2 if abs(z[0] - y) < delta else delta * (abs(z[0] - y) - delta / 2)


# loss, number of scores, formula, constant
CASES = [
    (lip.TauCrossEntropy(tau=0.1), 10, tau_cross_entropy(0.1), 1.41421356),
    (lip.TauCrossEntropy(tau=20.0, classes=10), 10, tau_cross_entropy(20.0), 1.41421356),
    (lip.TauCrossEntropy(tau=1.0), 2, tau_cross_entropy(1.0), 1.41421356),
    (lip.TauBCE(tau=0.5), 1, tau_bce(0.5), 1.0),
    (lip.HuberLoss(delta=2.0), 1, huber(2.0), 2.0),
]
every_case = pytest.mark.parametrize(
    ("loss", "outputs", "formula", "constant"), CASES, ids=[f"{loss}-{outputs}" for loss, outputs, *_ in CASES]
)
every_loss = pytest.mark.parametrize(("loss", "outputs"), [case[:2] for case in CASES], ids=str)


def some(outputs: int, count: int = 64, scale: float = 2.0) -> tuple[Tensor, Tensor]:
    return scale * torch.randn(count, outputs, dtype=torch.float64), torch.randint(max(2, outputs), (count,))


def gradients(loss: nn.Module, scores: Tensor, targets: Tensor, *, again: bool = False) -> Tensor:
    """One row per example."""
    scores = scores if scores.requires_grad else scores.clone().requires_grad_()
    [rows] = torch.autograd.grad(loss(scores, targets).sum(), [scores], create_graph=again)
    return rows


def worst_case_search(loss: nn.Module, scores: Tensor, targets: Tensor, reach: float = math.inf) -> float:
    """The largest gradient norm found by ascent from many starts, with scores in a ball."""

    def within(z: Tensor) -> Tensor:
        return z * (reach / z.norm(dim=1, keepdim=True)).clamp(max=1.0)

    scores = within(scores).requires_grad_()
    ascent = torch.optim.Adam([scores], lr=0.02 * min(reach, float(scores.detach().std())), maximize=True)
    found = 0.0
    for _ in range(200):
        norms = gradients(loss, scores, targets, again=True).norm(dim=1)
        found = max(found, float(norms.detach().max()))
        if not norms.requires_grad:
            break
        ascent.zero_grad()
        norms.sum().backward()
        ascent.step()
        with torch.no_grad():
            scores.copy_(within(scores))
    return found


@every_case
def test_a_loss_follows_its_formula(loss: nn.Module, outputs: int, formula: Callable, constant: float) -> None:
    scores, targets = some(outputs)
    expected = [formula(z.tolist(), int(y)) for z, y in zip(scores, targets, strict=True)]
    torch.testing.assert_close(loss(scores, targets), torch.tensor(expected, dtype=torch.float64))


@every_case
def test_ascent_reaches_the_constant_and_never_exceeds_it(
    loss: nn.Module, outputs: int, formula: Callable, constant: float
) -> None:
    assert loss.lipschitz() == pytest.approx(constant, rel=1e-8)
    found = max(worst_case_search(loss, *some(outputs, scale=scale)) for scale in (0.05, 2.0, 200.0))
    assert found <= loss.lipschitz() * (1 + 1e-12)
    assert found >= loss.lipschitz() * (1 - 1e-5)


@pytest.mark.parametrize(
    ("tau", "reach", "constant", "searched"),
    [(1.0, 1.0, 1.37702, 1.00934), (0.1, 1.0, 1.28980, 0.95662), (5.0, 1.0, 1.41408, 1.34999)],
)
def test_bounded_scores_tighten_the_cross_entropy(tau: float, reach: float, constant: float, searched: float) -> None:
    loss = lip.TauCrossEntropy(tau, classes=10)
    assert loss.lipschitz(logit_bound=reach) == pytest.approx(constant, abs=5e-6)
    found = worst_case_search(loss, *some(10, count=256), reach)
    assert searched - 1e-5 <= found <= loss.lipschitz(logit_bound=reach)


def test_a_smaller_bound_on_the_scores_gives_a_smaller_constant() -> None:
    loss = lip.TauCrossEntropy(tau=0.3, classes=10)
    constants = [loss.lipschitz(logit_bound=reach) for reach in (0.0, 0.1, 1.0, 10.0, 1e4, 1e300, math.inf)]
    assert constants == sorted(constants)
    assert constants[0] == pytest.approx(math.sqrt(2) * 0.9)
    assert constants[-1] == loss.lipschitz() == math.sqrt(2)
    assert lip.TauCrossEntropy(tau=0.3).lipschitz(logit_bound=1.0) == math.sqrt(2)


@every_loss
def test_one_finite_loss_per_example_for_any_number_and_size_of_scores(loss: nn.Module, outputs: int) -> None:
    for count, scale in ((0, 1.0), (1, 1.0), (5, 0.0), (5, 1e6)):
        scores, targets = some(outputs, count, scale)
        losses = loss(scores.float(), targets)
        assert losses.shape == (count,)
        assert losses.dtype == torch.float32
        assert losses.isfinite().all()
        assert gradients(loss, scores, targets).isfinite().all()


@every_loss
def test_what_does_not_fit_is_refused(loss: nn.Module, outputs: int) -> None:
    scores, targets = some(outputs, 4)
    with pytest.raises(ValueError, match="one target for each of 4 examples"):
        loss(scores, targets[:3])
    with pytest.raises(ValueError, match="one target for each of 4 examples"):
        loss(scores, targets.unsqueeze(1))
    with pytest.raises(ValueError, match=r"expected one score|expected scores of shape"):
        loss(scores.repeat(1, 2) if outputs == 1 else scores[:, :1], targets)


@every_loss
def test_the_loss_of_a_target_that_is_no_class_is_nan_and_that_of_no_other(loss: nn.Module, outputs: int) -> None:
    numbers = outputs == 1 and isinstance(loss, lip.HuberLoss)
    scores, targets = some(outputs, 4)
    targets = targets.clamp(max=1)
    expected = gradients(loss, scores, targets)
    for wrong in (math.nan, math.inf) if numbers else (-1, max(2, outputs), -100, 0.5, math.nan, 1e30):
        bad = torch.cat([torch.tensor([wrong], dtype=torch.float64), targets[1:].double()])
        assert loss(scores, bad).isnan().tolist() == [True, False, False, False]
        rows = gradients(loss, scores, bad)
        assert rows[0].isnan().any()
        torch.testing.assert_close(rows[1:], expected[1:], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: lip.TauCrossEntropy(tau=0.0), "finite tau > 0"),
        (lambda: lip.TauCrossEntropy(tau=1.0, classes=1), "classes >= 2"),
        (lambda: lip.TauBCE(tau=math.inf), "finite tau > 0"),
        (lambda: lip.HuberLoss(delta=0.0), "finite delta > 0"),
        (lambda: lip.TauCrossEntropy(tau=1.0, classes=3).lipschitz(-1.0), "logit_bound >= 0"),
    ],
)
def test_numbers_outside_their_domain_are_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
