"""What trains everywhere else trains here, exactly and for all examples at once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from model_cases import Forward
from noisette import OneByOneWarning, PerExampleClip, PrivacyError
from noisette.core import trace
from oracle import example_gradients
from small_loop import square as squares

Form = Callable[..., Any]


def summed(form: Form, x: Tensor, **modules: nn.Module) -> Tensor:
    torch.manual_seed(0)
    model = Forward(form, f=nn.Linear(4, 4), **modules).double()
    truth = example_gradients(model, squares, (x,)).clipped(0.5).vector
    clip = PerExampleClip(model, 0.5, capture="eager")
    clip.before_first_batch()
    clip.begin_batch()
    clip.accumulate(squares, x[:1])
    clip.accumulate(squares, x[1:])
    clip.end_batch()
    [total] = clip.pop_sums()
    found = torch.cat([g.double().flatten() for g in total.grads])
    torch.testing.assert_close(found, truth, rtol=1e-9, atol=1e-12)
    return found


class Reversal(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return -ctx.scale * dy, None


class Doublings(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, times: int) -> Tensor:
        ctx.times = times
        return 2 * (Doublings.apply(x, times - 1) if times > 1 else x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return dy * 2**ctx.times, None


class Pair(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Any:
        ctx.wave = x.sin()
        ctx.save_for_backward(ctx.wave, y)
        return ctx.wave * y, x + y

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dz: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        wave, y = ctx.saved_tensors
        return (dy * y * (1 - ctx.wave**2) + dz if ctx.needs_input_grad[0] else None), dy * wave + dz


class WithoutRule(Function):
    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x**3

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return 3 * ctx.saved_tensors[0] ** 2 * dy


def written_by_a_method(m: Forward, x: Tensor) -> Tensor:
    """A third of the bias stays zero, as in Swin version 2."""
    bias = m.f.bias.clone()
    bias[1:3].zero_()
    bias[:1].mul_(3)
    return F.linear(x, m.f.weight, bias)


def written_by_examples(m: Forward, x: Tensor) -> Tensor:
    bias = m.f.bias.clone()
    bias[1:3] = x[0, 1:3]
    return F.linear(x, m.f.weight, bias) + m.f.bias


def kept_features(m: Forward, x: Tensor) -> Tensor:
    kept: list[Tensor] = []
    handle = m.f.register_forward_hook(lambda module, given, output: kept.append(output))
    m.f(x)
    handle.remove()
    return m.f(x) * kept[0].sum()


FORMS: dict[str, Form] = {
    "part of a copied weight": written_by_a_method,
    "copied weight with values of examples": written_by_examples,
    "FloatTensor": lambda m, x: m.f(x) * torch.DoubleTensor([0.5]) + torch.Tensor([1, 2, 3, 4]),
    "from_numpy": lambda m, x: m.f(x) + torch.from_numpy(np.tri(4))[1],
    "DLPack": lambda m, x: m.f(x) * torch.from_dlpack(np.full(4, 2.0)),
    "parameter made inside": lambda m, x: F.linear(m.f(x), nn.Parameter(m.f.weight.T)),
    "no rows": lambda m, x: torch.cat([m.f(x), m.f(x[1:])]),
    "columns": lambda m, x: torch.column_stack([m.f(x)[0], x[0]]),
    "features that a hook keeps": kept_features,
    "sparse product": lambda m, x: torch.sparse.mm(torch.eye(4, dtype=x.dtype)[1:].to_sparse(), m.f.weight) @ x.T,
    "gradient of an activation kept": lambda m, x: (h := m.f(x), h.retain_grad(), h * h)[2],
    "channels last": lambda m, x: m.f(x).view(1, 4, 1, 1).contiguous(memory_format=torch.channels_last),
    "old style, within itself": lambda m, x: Doublings.apply(m.f(x), 3),
    "function without a rule": lambda m, x: WithoutRule.apply(m.f(x)),
    "old function": lambda m, x: m.f(Reversal.apply(m.f(x), 0.3)),
    "old function of two": lambda m, x: sum(Pair.apply(m.f(x), m.f(-x))) + sum(Pair.apply(x, m.f(x))),
}
LAYERS: dict[str, tuple[Form, Callable[[], nn.Module]]] = {
    "instance norm, then in place": (
        lambda m, x: m.g(m.f(x).unsqueeze(2) * x).mul_(2).relu_(),
        lambda: nn.InstanceNorm1d(4, affine=True),
    ),
    "view of a recurrence": (lambda m, x: m.g(x.view(4, 1, 1))[0].view(-1), lambda: nn.LSTM(1, 3)),
    "bags with padding": (
        lambda m, x: m.g((x > 0).long(), per_sample_weights=m.f(x)),
        lambda: nn.EmbeddingBag(2, 3, mode="sum", padding_idx=0),
    ),
    "bags that end": (
        lambda m, x: m.g((x[0] > 0).long(), torch.tensor([0, 2, 4])),
        lambda: nn.EmbeddingBag(2, 3, include_last_offset=True),
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse invariant")
@pytest.mark.parametrize("name", [*FORMS, *LAYERS])
def test_it_is_exact_for_all_examples_at_once(name: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(6, 4, dtype=torch.float64)
    form, layer = LAYERS[name] if name in LAYERS else (FORMS[name], nn.Identity)
    assert float(summed(form, x, g=layer()).norm()) > 0


def in_view(m: Forward, x: Tensor) -> Tensor:
    bias = m.f.bias.clone()
    bias[1:3].copy_(x[0, 1:3])
    return F.linear(x, m.f.weight, bias)


APART: dict[str, Form] = {
    "values of examples in a view of a copied weight": in_view,
    "graph": lambda m, x: m.f(x) if m.f(x).grad_fn is not None else x,
    "address": lambda m, x: m.f(x) * (x.data_ptr() > 0),
    "transformation of torch.func": lambda m, x: (
        m.f(x) + torch.func.grad(lambda v: m.f(v).sin().sum())(x) * x.unique().shape[0]
    ),
}


@pytest.mark.parametrize("name", APART)
def test_what_cannot_be_seen_for_all_examples_is_exact_one_by_one(name: str) -> None:
    with pytest.warns(OneByOneWarning):
        summed(APART[name], torch.randn(6, 4, dtype=torch.float64))


def test_a_loss_that_has_written_into_its_arguments_is_not_called_again() -> None:
    x = torch.randn(6, 4, dtype=torch.float64)
    with pytest.raises(PrivacyError, match=r"x = x\.clone\(\)"):
        summed(lambda m, x: m.f(x.mul_(2)) * x.unique().shape[0], x.clone())
    with pytest.warns(OneByOneWarning):
        summed(lambda m, x: m.f((x := x.clone()).mul_(2)) * x.unique().shape[0], x)


def test_an_error_without_a_message_is_the_error_of_the_loss() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        raise NotImplementedError

    with pytest.warns(OneByOneWarning, match="NotImplementedError"), pytest.raises(NotImplementedError):
        PerExampleClip(nn.Linear(4, 2), 1.0).accumulate(loss, torch.randn(3, 4))


def row(*shape: int) -> Tensor:
    return torch.randn(3, *shape)


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 9, (3, *shape))


def layers() -> dict[str, tuple[nn.Module, tuple[Tensor, ...]]]:
    steps, states = row(5, 4), row(4)
    return {
        "linear": (nn.Linear(4, 3), (states,)),
        "bilinear": (nn.Bilinear(4, 4, 3), (states, states)),
        "embedding": (nn.Embedding(9, 4), (ids(3),)),
        **{mode: (nn.EmbeddingBag(9, 4, mode=mode), (ids(3),)) for mode in ("sum", "mean", "max")},
        **{f"convolution {n}": (getattr(nn, f"Conv{n}d")(2, 3, 3), (row(2, *[5] * n),)) for n in (1, 2, 3)},
        **{f"transposed {n}": (getattr(nn, f"ConvTranspose{n}d")(2, 3, 3), (row(2, *[4] * n),)) for n in (1, 2, 3)},
        "layer norm": (nn.LayerNorm(4), (states,)),
        "RMS norm": (nn.RMSNorm(4), (states,)),
        "group norm": (nn.GroupNorm(2, 4), (row(4, 5),)),
        "instance norm": (nn.InstanceNorm1d(4, affine=True), (row(4, 5),)),
        "batch norm": (nn.BatchNorm1d(4).eval(), (states,)),
        **{kind: (getattr(nn, kind)(4, 3, batch_first=True), (steps,)) for kind in ("RNN", "LSTM", "GRU")},
        **{f"{kind}Cell": (getattr(nn, f"{kind}Cell")(4, 3), (states,)) for kind in ("RNN", "LSTM", "GRU")},
        "attention": (nn.MultiheadAttention(4, 2, batch_first=True), (steps,) * 3),
        "encoder": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), (steps,)),
        "decoder": (nn.TransformerDecoderLayer(4, 2, 8, batch_first=True), (steps, steps)),
        "slope": (nn.PReLU(), (states,)),
    }


COPIES = {"slope": 1}  # layers whose weights each example gets a copy of, and how many


@pytest.mark.parametrize("name", layers())
def test_a_supported_layer_is_computed_by_its_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, copy = [], trace.Recorder._own_copy
    monkeypatch.setattr(trace.Recorder, "_own_copy", lambda *given: made.append(given) or copy(*given))
    layer, given = layers()[name]
    clip = PerExampleClip(layer, 1.0, capture="eager")
    clip.accumulate(lambda m, *x: (y if isinstance(y := m(*x), Tensor) else y[0]).square().sum(), *given)
    assert len(made) == COPIES.get(name, 0)


def test_a_large_weight_that_is_copied_is_said_once() -> None:
    clip = PerExampleClip(Forward(lambda m, x: torch.cdist(x, m.f.weight), f=nn.Linear(2000, 1000)), 1.0)
    with pytest.warns(UserWarning, match=r"\(1000, 2000\), because cdist has no rule.* take 69 MiB"):
        clip.accumulate(squares, torch.randn(9, 2000))
    clip.accumulate(squares, torch.randn(9, 2000))


def test_positions_that_all_examples_share_are_copied_without_a_word() -> None:
    """As in BERT, whose gradients for them are as large as what the words give."""
    positions = torch.arange(64)[None]
    model = Forward(
        lambda m, x: m.words(x) + m.places(positions), words=nn.Embedding(9, 256), places=nn.Embedding(64, 256)
    )
    PerExampleClip(model, 1.0, capture="eager").accumulate(squares, torch.randint(9, (8, 64)))
