"""Each rule clips what it says to the bound it says, with every engine; no factor can break its bound."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from engine_check import ENGINES, cast
from model_cases import CASES, cross_entropy, mlp
from noisette import AutomaticClipping, FlatClipping, GroupwiseClipping, PerExampleClip, PerLayerClipping
from noisette.core.clip import Group
from noisette.core.release import ROUNDING
from oracle import example_gradients

every_engine = pytest.mark.parametrize("engine", ENGINES[:3], ids=lambda e: type(e).__name__)
SHAPES = {"0.weight": (8, 6), "0.bias": (8,), "2.weight": (8, 8), "4.weight": (4, 8), "4.bias": (4,)}
LAYERS = [("0.weight", "0.bias"), ("2.weight",), ("4.weight", "4.bias")]


def taken(rule, engine, *, dtype=torch.float64, b: int = 7):
    model, (x, y) = mlp().to(dtype), cast(CASES[0].inputs(b), dtype)
    x[0] *= 10  # some examples are long in one layer and short in another
    clip = PerExampleClip(model, clipping=rule, engine=engine)
    assert list(clip.parameters) == list(SHAPES)
    clip.accumulate(cross_entropy, x, y)
    sums = clip.pop_sums()
    names = {id(p): name for name, p in clip.parameters.items()}
    return sums, names, example_gradients(model, cross_entropy, (x, y)).gradients


def expected(gradients, groups, factor) -> dict[str, Tensor]:
    sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for g in gradients:
        for names, bound in groups:
            for name in names:
                norm = math.sqrt(sum(float(g[each].square().sum()) for each in names))
                sums[name] += min(factor(norm, bound), bound / norm) * g[name].double()
    return sums


def capped(norm: float, bound: float) -> float:
    return min(1.0, bound / norm)


ALL = tuple(SHAPES)
RULES = {
    "flat": (FlatClipping(0.5), [(ALL, 0.5)], capped),
    "per layer": (PerLayerClipping(0.5), [(names, 0.5 / math.sqrt(3)) for names in LAYERS], capped),
    "per group": (
        GroupwiseClipping({"4": 0.1, "0": 0.7, "2.weight": 0.3}),
        [(LAYERS[2], 0.1), (LAYERS[0], 0.7), (LAYERS[1], 0.3)],
        capped,
    ),
    "automatic": (AutomaticClipping(0.5), [(ALL, 0.5)], lambda norm, bound: bound / (norm + 0.01)),
}


@every_engine
@pytest.mark.parametrize(("rule", "groups", "factor"), RULES.values(), ids=RULES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_sums_are_those_of_single_examples(rule, groups, factor, engine, dtype) -> None:
    sums, names, gradients = taken(rule, engine, dtype=dtype)
    truth = expected(gradients, groups, factor)
    assert [(tuple(names[id(p)] for p in s.params), s.bound) for s in sums] == groups
    assert all(s.share is None and s.name == "gradient" for s in sums)
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-5}[dtype]
    for s in sums:
        for p, g in zip(s.params, s.grads, strict=True):
            error = float((g.double() - truth[names[id(p)]]).norm())
            assert error <= tolerance * max(float(t.norm()) for t in truth.values()), names[id(p)]


@every_engine
@pytest.mark.parametrize(("rule", "groups", "factor"), RULES.values(), ids=RULES)
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_one_example_moves_no_group_beyond_its_bound(rule, groups, factor, engine, scale: float) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        model, (x, y) = mlp().to(dtype), cast(CASES[0].inputs(1), dtype)
        clip = PerExampleClip(model, clipping=rule, engine=engine)
        clip.accumulate(lambda model, x, y: cross_entropy(model, x * scale, y) * scale, x, y)
        for s in clip.pop_sums():
            assert math.sqrt(sum(float(g.double().square().sum()) for g in s.grads)) <= s.bound * (1 + ROUNDING)


def test_groups_that_leave_out_or_share_parameters_are_refused_and_all_listed() -> None:
    with pytest.raises(ValueError, match="exactly one group") as refusal:
        PerExampleClip(mlp(), clipping=GroupwiseClipping({"0": 1.0, "0.bias": 1.0, "2.weigh": 0.5, "head": 1.0}))
    message = str(refusal.value)
    assert "0.bias is in '0' and '0.bias'" in message
    assert all(f"{name} is in no group" in message for name in ("2.weight", "4.weight", "4.bias"))
    assert all(f"'{name}' names no trainable parameter" in message for name in ("2.weigh", "head"))
    assert "0.weight is" not in message


@pytest.mark.parametrize("names_of", [lambda names: [names[1:]], lambda names: [names, names[:1]]])
def test_rule_of_ones_own_must_cover_every_parameter_once(names_of) -> None:
    rule = SimpleNamespace(groups=lambda names: [Group(tuple(each), 1.0) for each in names_of(names)])
    with pytest.raises(ValueError, match="every trainable parameter in exactly one group"):
        PerExampleClip(mlp(), clipping=rule)


@pytest.mark.parametrize("bound", [0, math.nan, "1"])
@pytest.mark.parametrize(
    "rule", [FlatClipping, PerLayerClipping, AutomaticClipping, lambda c: GroupwiseClipping({"0": c})]
)
def test_bounds_that_bound_nothing(rule, bound) -> None:
    with pytest.raises((ValueError, TypeError), match=r"max_grad_norm|expected a finite 0|expected 0"):
        rule(bound)


@every_engine
@pytest.mark.parametrize(
    "after", [lambda n: n * 0 + 1e9, lambda n: n * 0 - 1e9, lambda n: n / 0], ids=["huge", "negative", "nan"]
)
def test_factor_of_ones_own_is_held_to_the_bound(after, engine) -> None:
    model, (x, y) = mlp(), CASES[0].inputs(1)
    rule = SimpleNamespace(groups=lambda names: [Group(tuple(names), 0.5, after)])
    clip = PerExampleClip(model, clipping=rule, engine=engine)
    clip.accumulate(cross_entropy, x, y)
    [s] = clip.pop_sums()
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in s.grads))
    assert norm <= 0.5 * (1 + ROUNDING), "whatever the function says"


@every_engine
@pytest.mark.parametrize(("rule", "groups", "factor"), RULES.values(), ids=RULES)
def test_bad_example_contributes_nothing_to_any_group(rule, groups, factor, engine) -> None:
    model, (x, y) = mlp().double(), cast(CASES[0].inputs(5), torch.float64)
    x[2, 0] = float("inf")
    kept, found = [0, 1, 3, 4], []
    for batch in ((x, y), (x[kept], y[kept])):
        clip = PerExampleClip(model, clipping=rule, engine=engine)
        clip.accumulate(cross_entropy, *batch)
        found.append(torch.cat([g.flatten() for s in clip.pop_sums() for g in s.grads]))
    torch.testing.assert_close(*found, rtol=1e-10, atol=1e-13)
    assert found[1].any()
