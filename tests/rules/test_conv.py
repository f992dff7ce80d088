"""Convolutions against autograd: every plan by itself, on shapes whose per-axis numbers all differ."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from noisette.rules import Examples, conv
from noisette.rules.conv import Kernel, conv_bias, conv_weight
from rule_oracle import TOLERANCE, by_autograd, check_form, double

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

B = 3
PLANS = {
    "gram of pixels",
    "gram of patches",
    "loop, kept",
    "grouped, kept",
    "unfold, kept",
    "loop, dropped",
    "grouped, dropped",
    "unfold, dropped",
}
seen_plans: set[str] = set()


def check_conv(x: Tensor, w: Tensor, bias: Tensor, **numbers: object) -> None:
    """The rule, and each of its plans, on this convolution."""
    operation = torch.conv1d if w.dim() == 3 else torch.conv2d
    dy = torch.randn_like(operation(x, w, bias, **numbers))
    truth = by_autograd(lambda v: operation(x, v, bias, **numbers), w, dy, len(x))
    check_form(conv_weight(Examples(len(x)), dy, x, w, bias, **numbers), truth)
    check_form(
        conv_bias(Examples(len(x)), dy, x, w, bias, **numbers),
        by_autograd(lambda v: operation(x, w, v, **numbers), bias, dy, len(x)),
    )
    form = conv_weight(Examples(len(x)), dy, x, w, bias, **numbers)
    assert isinstance(form, Kernel)
    weights = torch.linspace(-1, 2, len(x), dtype=x.dtype)
    for keep in (0, 10**9):  # none of the plans that keep explicit gradients, then all of them
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conv, "_KEEP_EXPLICIT", keep)
            plans = form._plans()
        for name, plan in plans.items():
            seen_plans.add(name)
            fresh = replace(form, kept=None)
            torch.testing.assert_close(plan(fresh), truth.flatten(1).square().sum(1), **TOLERANCE)
            assert (fresh.kept is not None) == name.endswith("kept")
            torch.testing.assert_close(
                fresh.weighted_sum(weights), torch.einsum("b,b...->...", weights, truth), **TOLERANCE
            )


distinct_pairs = st.permutations([1, 2, 3]).map(lambda numbers: (numbers[0], numbers[1]))
paddings = st.one_of(
    st.permutations([0, 1, 2, 3]).map(lambda numbers: (numbers[0], numbers[1])), st.sampled_from(["valid", "same"])
)


@st.composite
def convolutions(draw: st.DrawFn, axes: int):
    """Kernel, stride, dilation and padding drawn for each axis, and different on the two."""
    kernel, stride, dilation, padding = (
        draw(numbers) for numbers in (distinct_pairs, distinct_pairs, distinct_pairs, paddings)
    )
    if padding == "same":
        stride = (1, 1)
    groups, channels, outputs = draw(st.sampled_from([(1, 2, 3), (2, 4, 6), (3, 3, 6), (2, 2, 2)]))
    size = tuple(draw(st.integers(1, 7)) for _ in range(2))
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    around = (0, 0) if isinstance(padding, str) else padding
    assume(padding == "same" or all(n + 2 * p >= s for n, p, s in zip(size, around, spans, strict=True)))
    cut = slice(0, axes)
    numbers = {"stride": stride[cut], "dilation": dilation[cut], "groups": groups}
    numbers["padding"] = padding if isinstance(padding, str) else padding[cut]
    return (channels, *size[cut]), (outputs, channels // groups, *kernel[cut]), numbers


def check_drawn(case: tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]) -> None:
    image, weight, numbers = case
    check_conv(double(B, *image), double(*weight), double(weight[0]), **numbers)


@given(convolutions(axes=2))
@settings(max_examples=60, deadline=None)
def test_two_dimensional_lattice(case) -> None:
    check_drawn(case)


@given(convolutions(axes=1))
@settings(max_examples=40, deadline=None)
def test_one_dimensional_lattice(case) -> None:
    check_drawn(case)


@pytest.mark.slow
@given(st.one_of(convolutions(axes=2), convolutions(axes=1)))
@settings(max_examples=3000, deadline=None)
def test_long_lattice(case) -> None:
    check_drawn(case)


@pytest.mark.slow
def test_full_lattice_in_one_dimension() -> None:
    for kernel, stride, dilation, padding in itertools.product([1, 2, 3], [1, 2, 3], [1, 2, 3], [0, 1, 2, 3]):
        check_conv(double(B, 2, 8), double(3, 2, kernel), double(3), stride=stride, dilation=dilation, padding=padding)


def test_every_plan_was_seen() -> None:
    check_conv(double(B, 4, 7, 5), double(6, 2, 3, 2), double(6), stride=(2, 1), padding=(1, 2), groups=2)
    assert seen_plans == PLANS


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [(1, 2), "same"], ids=str)
def test_padding_modes(mode: str, padding: tuple[int, int] | str) -> None:
    from noisette import PerExampleClip

    layer = torch.nn.Conv2d(2, 3, (3, 2), padding=padding, padding_mode=mode).double()
    x = double(B, 2, 6, 5)
    clip = PerExampleClip(layer, 1e9)
    clip.backward(layer(x).square().flatten(1).sum(1))
    [total] = clip.take()
    clip.close()
    expected = torch.autograd.grad(layer(x).square().sum(), list(layer.parameters()))
    for found, truth in zip(total.grads, expected, strict=True):
        torch.testing.assert_close(found, truth, **TOLERANCE)


def test_numbers_may_be_whole_or_lists() -> None:
    x, w, bias = double(B, 2, 7, 6), double(3, 2, 3, 3), double(3)
    for numbers in ({"stride": 2, "padding": 1}, {"stride": [2], "padding": [1]}, {"dilation": 2, "padding": (1,)}):
        check_conv(x, w, bias, **numbers)


def test_non_contiguous_input() -> None:
    check_conv(double(B, 7, 6, 2).permute(0, 3, 1, 2), double(3, 2, 3, 2), double(3), stride=(1, 2))


def test_parts_of_the_batch_cover_it() -> None:
    """Plans that go over the batch in parts give every example once, whatever the parts' size."""
    with pytest.MonkeyPatch.context() as patch:
        for share in (0, 1, 100):
            patch.setattr(conv, "_DROPPED_AT_ONCE", share)
            check_conv(double(7, 2, 5, 4), double(3, 2, 3, 2), double(3))


def test_measured_choice_is_exact() -> None:
    """From sixteen examples on the quickest plan is measured; all give the same."""
    x, w, bias = double(20, 2, 6, 5), double(3, 2, 3, 3), double(3)
    check_conv(x, w, bias, padding=1)


def test_gram_plans_stop_at_many_places() -> None:
    form = conv_weight(Examples(1), torch.zeros(1, 1, 40, 40), torch.zeros(1, 1, 40, 40), torch.zeros(1, 1, 1, 1), None)
    assert not any(name.startswith("gram") for name in form._plans())


def test_folded_images_are_refused() -> None:
    with pytest.raises(ValueError, match="batch of 6 is not the batch of 3"):
        conv_weight(Examples(3), double(6, 3, 4, 4), double(6, 2, 4, 4), double(3, 2, 1, 1), None)
