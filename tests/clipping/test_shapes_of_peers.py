"""What the tests of Opacus, jax_privacy and fastDP cover, by one oracle: a loop over single examples.

Source: the gradient tests of Opacus (`opacus/tests/grad_samples`), the tests of `jax_privacy.clipping`, and the layers
that fastDP supports (`fastDP/supported_layers_grad_samplers.py`).
"""

import math
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_cases import Forward, parameter
from noisette import AutomaticClipping, FlatClipping, PerExampleClip
from noisette.core.clip import ClippingRule
from oracle import example_gradients
from small_loop import clipped_by

B, WORDS = 3, 7
Case = tuple[Callable[[], nn.Module], tuple[Tensor, ...]]


def floats(*shape: int) -> Tensor:
    return torch.randn(B, *shape, generator=torch.Generator().manual_seed(len(shape)), dtype=torch.float64)


def words(*shape: int) -> Tensor:
    return torch.randint(0, WORDS, (B, *shape), generator=torch.Generator().manual_seed(1))


def convolutions() -> Iterator[tuple[str, Case]]:
    """Each option by itself, and pairs of those that act together; in one, two and three dimensions."""
    options: list[dict[str, Any]] = [
        *({"stride": 2, "padding": 1}, {"stride": 3, "dilation": 2}, {"padding": 2, "dilation": 2}, {"bias": False}),
        *({"groups": 2}, {"groups": 4, "padding": 1, "stride": 2}, {"padding": "same", "dilation": 2}),
        *({"padding": "valid", "groups": 2}, {"padding": 1, "padding_mode": "circular"}, {"kernel_size": 1}),
    ]
    for d, more in product((1, 2, 3), options):
        x = floats(4, *(7, 6, 5)[:d])
        named = {"kernel_size": 3 if d == 1 else (3, 2, 2)[:d]} | more
        yield f"Conv{d}d {more}", (lambda d=d, n=named: getattr(nn, f"Conv{d}d")(4, 8, **n), (x,))
    for d, more in product((1, 2, 3), ({"stride": 2, "output_padding": 1}, {"groups": 2, "dilation": 2, "padding": 1})):
        x = floats(4, *(4, 3, 3)[:d])
        yield f"ConvTranspose{d}d {more}", (lambda d=d, m=more: getattr(nn, f"ConvTranspose{d}d")(4, 6, 3, **m), (x,))


def recurrent() -> Iterator[tuple[str, Case]]:
    for kind, (layers, both, first, bias) in product(
        ("RNN", "GRU", "LSTM"),
        ((1, False, True, True), (2, True, True, True), (3, False, False, False), (1, True, False, True)),
    ):

        def forward(m: Forward, x: Tensor, first: bool = first) -> Tensor:
            output, last = m.f(x if first else x.transpose(0, 1))
            return output.square().sum() + sum(state.sum() for state in (last if isinstance(last, tuple) else (last,)))

        named = {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias}
        make = lambda kind=kind, f=forward, n=named: Forward(f, f=getattr(nn, kind)(3, 4, **n))  # noqa: E731
        yield f"{kind} {layers} {both} {first} {bias}", (make, (floats(5, 3),))


def attention() -> Iterator[tuple[str, Case]]:
    for more in (
        *({}, {"bias": False}, {"add_bias_kv": True}, {"add_zero_attn": True, "kdim": 5}),
        *({"vdim": 3, "add_bias_kv": True, "add_zero_attn": True}, {"kdim": 5, "vdim": 3, "batch_first": False}),
    ):
        first = more.get("batch_first", True)

        def forward(m: Forward, q: Tensor, k: Tensor, v: Tensor, pad: Tensor, first: bool = first) -> Tensor:
            order = (lambda x: x) if first else (lambda x: x.transpose(0, 1))
            output, weights = m.f(order(q), order(k), order(v), key_padding_mask=pad)
            return output.square().sum() + weights.square().sum()

        inputs = floats(4, 6), floats(5, more.get("kdim", 6)), floats(5, more.get("vdim", 6))
        make = lambda f=forward, n={"batch_first": True} | more: Forward(f, f=nn.MultiheadAttention(6, 2, **n))  # noqa: E731
        yield f"MultiheadAttention {more}", (make, (*inputs, words(5) > 4))


def others() -> Iterator[tuple[str, Case]]:
    for shape, bias in (((4,), True), ((5, 4), False), ((3, 5, 4), True), ((2, 3, 5, 4), False)):
        yield f"Linear {len(shape) + 1} axes", (lambda b=bias: nn.Linear(4, 3, bias=b), (floats(*shape),))
    for shape in ((), (4,), (2, 3)):
        yield f"Embedding {len(shape) + 1} axes", (lambda: nn.Embedding(WORDS, 3), (words(*shape),))
    yield "Embedding padded", (lambda: nn.Embedding(WORDS, 3, padding_idx=0), (words(4),))
    for mode in ("sum", "mean", "max"):
        yield f"EmbeddingBag {mode}", (lambda m=mode: nn.EmbeddingBag(WORDS, 3, mode=m), (words(5),))
    weighted = lambda: Forward(lambda m, i, w: m.f(i, per_sample_weights=w), f=nn.EmbeddingBag(WORDS, 3, mode="sum"))  # noqa: E731
    yield "EmbeddingBag weighted", (weighted, (words(5), floats(5)))
    for shape, normalized in (((4,), (4,)), ((3, 4), (4,)), ((3, 4), (3, 4)), ((2, 3, 4), (3, 4))):
        yield f"LayerNorm {shape} {normalized}", (lambda n=list(normalized): nn.LayerNorm(n), (floats(*shape),))
    yield "RMSNorm", (lambda: nn.RMSNorm(4), (floats(3, 4),))
    for groups, shape in ((1, (4,)), (2, (4, 5)), (4, (4, 3, 2)), (2, (4, 3, 2, 2))):
        yield f"GroupNorm {groups} {shape}", (lambda g=groups: nn.GroupNorm(g, 4), (floats(*shape),))
    for d in (1, 2, 3):
        norm = lambda d=d: getattr(nn, f"InstanceNorm{d}d")(4, affine=True)  # noqa: E731
        yield f"InstanceNorm{d}d", (norm, (floats(4, *(4, 3, 2)[:d]),))
    bias = lambda: Forward(lambda m, x: torch.cat([x, m.bias.expand(len(x), 1, -1)], 1).exp(), bias=parameter(1, 1, 4))  # noqa: E731
    yield "sequence bias", (bias, (floats(3, 4),))
    for kind in ("RNNCell", "GRUCell"):
        yield kind, (lambda k=kind: Forward(lambda m, x: m.f(x, m.f(x)), f=getattr(nn, k)(3, 4)), (floats(3),))
    yield "LSTMCell", (lambda: Forward(lambda m, x: m.f(x, m.f(x))[1], f=nn.LSTMCell(3, 4)), (floats(3),))
    yield "Bilinear", (lambda: nn.Bilinear(3, 4, 2), (floats(3), floats(4)))
    yield "PReLU", (lambda: nn.PReLU(4), (floats(4, 3),))
    tied = lambda: Forward(lambda m, i: F.linear(m.f(i).tanh(), m.f.weight), f=nn.Embedding(WORDS, 3))  # noqa: E731
    yield "a weight used twice", (tied, (words(4),))


CASES = dict([*convolutions(), *recurrent(), *attention(), *others()])


def squares(model: nn.Module, *inputs: Tensor) -> Tensor:
    return (model(*inputs) - 0.3).square().sum()


@pytest.mark.filterwarnings("error::noisette.OneByOneWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_clipped_sum_of_each_layer(name: str) -> None:
    make, inputs = CASES[name]
    torch.manual_seed(0)
    model = make().double()
    gradients = example_gradients(model, squares, inputs)
    bound = sorted(gradients.norms)[1]  # of three examples one is below it, one at it, and one above it
    found = clipped_by(model, bound, squares, inputs, capture="eager")
    torch.testing.assert_close(found, gradients.clipped(bound).vector, rtol=1e-9, atol=1e-12)


# Cases of clipping: the gradient of the i-th example with respect to ``p`` is x_i


def tree() -> nn.Module:
    a = nn.ParameterDict({"x": nn.Parameter(torch.zeros(2)), "y": nn.Parameter(torch.zeros(()))})
    b = nn.ModuleList([nn.ParameterList([nn.Parameter(torch.zeros(1, 2))])])
    return Forward(lambda m, x: (torch.cat([p.flatten() for p in m.parameters()]) * x).sum(), a=a, b=b)


def tree_sum(*parts: Tensor, clipping: ClippingRule) -> Tensor:
    clip = PerExampleClip(tree().double(), clipping=clipping, capture="eager")
    for part in parts:
        clip.accumulate(lambda model, x: model(x), part)
    return torch.cat([grad.double().flatten() for sum in clip.pop_sums() for grad in sum.grads])


UNIT = torch.tensor([[0.6, 0.0, 0.8, 0.0, 0.0]], dtype=torch.float64)


@pytest.mark.parametrize("norm", [0.0, 1e-12, 0.5, 1 - 1e-9, 1.0, 1 + 1e-9, 1e18])
def test_norms_at_below_and_above_the_bound(norm: float) -> None:
    found = tree_sum(norm * UNIT, clipping=FlatClipping(1.0))
    torch.testing.assert_close(found, min(1.0, norm) * UNIT[0], rtol=1e-7, atol=0)


def test_gradients_are_rescaled_to_nearly_the_bound_by_automatic_clipping() -> None:
    for norm in (0.0, 0.5, 3.0, 1e6):
        found = tree_sum(norm * UNIT, clipping=AutomaticClipping(2.0))
        torch.testing.assert_close(found, 2 * norm / (norm + 0.01) * UNIT[0], rtol=1e-7, atol=0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_gradient_that_is_not_finite_adds_nothing(value: float) -> None:
    bad = UNIT.clone()
    bad[0, 3] = value
    found = tree_sum(torch.cat([0.5 * UNIT, bad, 4 * UNIT]), clipping=FlatClipping(1.0))
    torch.testing.assert_close(found, 1.5 * UNIT[0])
    assert not tree_sum(bad, clipping=FlatClipping(1.0)).any()


def test_microbatches_and_empty_ones_give_the_sum_of_the_batch() -> None:
    x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    truth = (x * (1 / x.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    for sizes in ([7], [1] * 7, [3, 4], [0, 5, 0, 2], [2, 5]):
        torch.testing.assert_close(tree_sum(*x.split(sizes), clipping=FlatClipping(1.0)), truth)
    assert not tree_sum(x[:0], clipping=FlatClipping(1.0)).any()
    assert not tree_sum(clipping=FlatClipping(1.0)).any()
