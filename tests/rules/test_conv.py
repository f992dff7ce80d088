"""Convolutions against autograd: every plan by itself, on shapes whose per-axis settings all differ."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from hypothesis import assume, given, settings, strategies
from torch import Tensor

from noisette.core.forms import Examples, compact
from noisette.rules.conv import GRAM_PLANS, explicit_plans, few_operations
from rule_oracle import TOLERANCE, by_autograd, check_form, double, rule_of

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")

B = 3
FORWARD = (torch.conv1d, torch.conv2d, torch.conv3d)
TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)


def check(operation: Callable[..., Tensor], x: Tensor, w: Tensor, examples: Examples, **numbers: object) -> None:
    """Both rules and each plan for the gradients of the kernel, on this convolution."""
    outputs = w.shape[1] * numbers.get("groups", 1) if operation in TRANSPOSED else w.shape[0]
    bias, b = double(outputs), examples.count
    dy = torch.randn_like(operation(x, w, bias, **numbers))
    apart = torch.zeros(b, *dy.shape, dtype=dy.dtype)  # dy of one example, zero elsewhere
    for i in range(b):
        examples.first(apart[i])[i] = examples.first(dy)[i]
    truth, of_bias = (
        torch.stack([by_autograd(function, leaf, silent, 1)[0] for silent in apart])
        for function, leaf in (
            (lambda v: operation(x, v, bias, **numbers), w),
            (lambda v: operation(x, w, v, **numbers), bias),
        )
    )
    check_form(rule_of(operation, "bias")(examples, dy, x, w, bias, **numbers), of_bias)
    form = rule_of(operation)(examples, dy, x, w, bias, **numbers)
    for context in (nullcontext, few_operations):
        with context():
            check_form(form, truth)
            check_form(compact(form), truth)
            for plan, _ in explicit_plans().values():
                found = plan(form)
                assert found.shape == form.shape
                torch.testing.assert_close(found.view_as(truth), truth, **TOLERANCE)
    for norms, _ in GRAM_PLANS.values():
        torch.testing.assert_close(norms(form), truth.flatten(1).square().sum(1), **TOLERANCE)


def distinct(axes: int, *numbers: int) -> strategies.SearchStrategy[tuple[int, ...]]:
    """A different one of these numbers for each axis."""
    return strategies.permutations(numbers).map(lambda order: tuple(order[:axes]))


GROUPS = strategies.sampled_from([(1, 2, 3), (2, 4, 6), (3, 3, 6), (2, 2, 2)])  # groups, channels, outputs


@strategies.composite
def convolutions(draw: strategies.DrawFn, axes: int):
    kernel, stride, dilation = (draw(distinct(axes, 1, 2, 3)) for _ in range(3))
    padding = draw(distinct(axes, 0, 1, 2, 3) | strategies.sampled_from(["valid", "same"]))
    if padding == "same":
        stride = (1,) * axes
    groups, channels, outputs = draw(GROUPS)
    size = tuple(draw(strategies.integers(1, 7)) for _ in range(axes))
    around = (0,) * axes if isinstance(padding, str) else padding
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    assume(padding == "same" or all(n + 2 * p >= s for n, p, s in zip(size, around, spans, strict=True)))
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    return FORWARD[axes - 1], (channels, *size), (outputs, channels // groups, *kernel), numbers


@strategies.composite
def transposed_convolutions(draw: strategies.DrawFn, axes: int):
    kernel, stride, dilation = (draw(distinct(axes, 1, 2, 3)) for _ in range(3))
    padding = draw(distinct(axes, 0, 1, 2, 3))
    extra = tuple(draw(strategies.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    groups, channels, outputs = draw(GROUPS)
    size = tuple(draw(strategies.integers(1, 5)) for _ in range(axes))
    each = zip(size, stride, dilation, kernel, extra, padding, strict=True)
    assume(all((n - 1) * s + d * (k - 1) + 1 + e > 2 * p for n, s, d, k, e, p in each))
    numbers = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "output_padding": extra}
    return TRANSPOSED[axes - 1], (channels, *size), (channels, outputs // groups, *kernel), numbers


@pytest.mark.parametrize("kind", [convolutions, transposed_convolutions])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_lattice(kind, axes: int) -> None:
    @given(kind(axes), strategies.integers(1, 2 if axes < 3 else 1))
    @settings(max_examples=25, deadline=None, derandomize=True)
    def run(case, images: int) -> None:  # of each example; volumes have one
        operation, image, weight, numbers = case
        check(operation, double(B * images, *image), double(*weight), Examples(B), **numbers)

    run()


def test_arguments_of_transposed_convolutions_in_their_own_order() -> None:
    x, w, bias = double(B, 4, 5, 4), double(4, 3, 3, 2), double(6)
    operation, arguments = torch.conv_transpose2d, ((2, 3), (1, 0), (1, 2), 2, (2, 1))
    dy = torch.randn_like(operation(x, w, bias, *arguments))
    form = rule_of(operation)(Examples(B), dy, x, w, bias, *arguments)
    check_form(form, by_autograd(lambda v: operation(x, v, bias, *arguments), w, dy, B))


def test_inputs_need_not_be_contiguous() -> None:
    check(torch.conv2d, double(B, 7, 6, 2).permute(0, 3, 1, 2), double(3, 2, 3, 2), Examples(B), stride=(1, 2))
    check(torch.conv2d, double(1, 2, 7, 6).expand(B, -1, -1, -1), double(3, 2, 3, 2), Examples(B))
    check(torch.conv2d, double(B + 1, 5, 7, 9)[1:, 1:3, :, 2:], double(3, 2, 3, 2), Examples(B))
    check(torch.conv_transpose1d, double(B, 7, 2).transpose(1, 2), double(2, 3, 3), Examples(B))


def test_measured_choice_is_exact() -> None:
    """From sixteen examples on the plans are measured; all have the same result."""
    for operation, w in ((torch.conv2d, double(3, 2, 3, 3)), (torch.conv_transpose2d, double(2, 3, 3, 2))):
        check(operation, double(20, 2, 6, 5), w, Examples(20), padding=1)


def test_volumes_folded_into_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="6 volumes in a batch of 3 examples"):
        rule_of(torch.conv3d)(Examples(3), double(6, 3, 4, 4, 4), double(6, 2, 4, 4, 4), double(3, 2, 1, 1, 1), None)
