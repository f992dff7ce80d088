"""Scale and shift of layer, RMS, group, instance and evaluating batch norm against autograd."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from noisette.core.forms import Examples, find_rule
from noisette.rules import normalization
from rule_oracle import by_autograd, check_form, double

B = 4

layer_norm_weight, layer_norm_bias = find_rule(F.layer_norm, "weight"), find_rule(F.layer_norm, "bias")
group_norm_weight, group_norm_bias = find_rule(F.group_norm, "weight"), find_rule(F.group_norm, "bias")
instance_norm_weight, instance_norm_bias = find_rule(F.instance_norm, "weight"), find_rule(F.instance_norm, "bias")
batch_norm_weight, batch_norm_bias = find_rule(F.batch_norm, "weight"), find_rule(F.batch_norm, "bias")
rms_norm_weight = find_rule(F.rms_norm, "weight")


@pytest.fixture(autouse=True, params=[1, 2**19], ids=["one at a time", "at once"])
def _cached(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(normalization, "_CACHED", request.param)


@pytest.mark.parametrize("between", [(), (3,), (2, 3)])
@pytest.mark.parametrize("axes", [(5,), (4, 5)])
def test_layer_norm(between: tuple[int, ...], axes: tuple[int, ...]) -> None:
    x, w, bias = double(B, *between, *axes), double(*axes), double(*axes)
    dy = double(*x.shape)
    check_form(
        layer_norm_weight(Examples(B), dy, x, axes, w, bias, 0.1),
        by_autograd(lambda v: F.layer_norm(x, axes, v, bias, 0.1), w, dy, B),
    )
    check_form(
        layer_norm_bias(Examples(B), dy, x, axes, w, bias, 0.1),
        by_autograd(lambda v: F.layer_norm(x, axes, w, v, 0.1), bias, dy, B),
    )


@pytest.mark.parametrize("between", [(), (3,), (2, 3)])
@pytest.mark.parametrize("eps", [None, 0.1])
def test_rms_norm(between: tuple[int, ...], eps: float | None) -> None:
    x, w = double(B, *between, 5), double(5)
    dy = double(*x.shape)
    check_form(
        rms_norm_weight(Examples(B), dy, x, (5,), w, eps), by_autograd(lambda v: F.rms_norm(x, (5,), v, eps), w, dy, B)
    )


@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
@pytest.mark.parametrize("groups", [1, 2, 6])
def test_group_norm(places: tuple[int, ...], groups: int) -> None:
    x, w, bias = double(B, 6, *places), double(6), double(6)
    dy = double(*x.shape)
    check_form(
        group_norm_weight(Examples(B), dy, x, groups, w, bias, 0.1),
        by_autograd(lambda v: F.group_norm(x, groups, v, bias, 0.1), w, dy, B),
    )
    check_form(
        group_norm_bias(Examples(B), dy, x, groups, w, bias, 0.1),
        by_autograd(lambda v: F.group_norm(x, groups, w, v, 0.1), bias, dy, B),
    )


@pytest.mark.parametrize("places", [(), (7,), (3, 2)])
def test_batch_norm_with_fixed_statistics(places: tuple[int, ...]) -> None:
    x, w, bias, mean, variance = double(B, 6, *places), double(6), double(6), double(6), double(6).square() + 0.1
    dy = double(*x.shape)
    check_form(
        batch_norm_weight(Examples(B), dy, x, mean, variance, w, bias, False, 0.1, 0.2),
        by_autograd(lambda v: F.batch_norm(x, mean, variance, v, bias, False, 0.1, 0.2), w, dy, B),
    )
    check_form(
        batch_norm_bias(Examples(B), dy, x, mean, variance, w, bias, False, 0.1, 0.2),
        by_autograd(lambda v: F.batch_norm(x, mean, variance, w, v, False, 0.1, 0.2), bias, dy, B),
    )


@pytest.mark.parametrize("operand", [batch_norm_weight, batch_norm_bias])
def test_batch_norm_over_the_batch_is_refused(operand: object) -> None:
    x, w, bias = double(B, 6), double(6), double(6)
    with pytest.raises(ValueError, match="mix examples"):
        operand(Examples(B), x, x, None, None, w, bias, True)  # type: ignore[operator]


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("places", [(7,), (3, 2)])
def test_instance_norm(places: tuple[int, ...], fixed: bool) -> None:
    x, w, bias = double(B, 6, *places), double(6), double(6)
    mean, variance = (double(6), double(6).square() + 0.1) if fixed else (None, None)
    dy = double(*x.shape)
    check_form(
        instance_norm_weight(Examples(B), dy, x, mean, variance, w, bias, not fixed, 0.1, 0.2),
        by_autograd(lambda v: F.instance_norm(x, mean, variance, v, bias, not fixed, 0.1, 0.2), w, dy, B),
    )
    check_form(
        instance_norm_bias(Examples(B), dy, x, mean, variance, w, bias, not fixed, 0.1, 0.2),
        by_autograd(lambda v: F.instance_norm(x, mean, variance, w, v, not fixed, 0.1, 0.2), bias, dy, B),
    )


@pytest.mark.parametrize("operand", [instance_norm_weight, instance_norm_bias])
def test_running_statistics_of_private_data_are_refused(operand: object) -> None:
    x, w, bias, mean, variance = double(B, 6, 3), double(6), double(6), double(6), double(6).square()
    with pytest.raises(ValueError, match="running statistics"):
        operand(Examples(B), x, x, mean, variance, w, bias)  # type: ignore[operator]
