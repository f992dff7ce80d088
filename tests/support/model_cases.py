"""Models as data: each uses parameters in another way, for which the clipped sum must be exact."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from small_loop import losses as cross_entropy

Inputs = tuple[Tensor, ...]


def squares(model: nn.Module, *inputs: Tensor) -> Tensor:
    """A loss (b,) of any output whose first axis holds the examples."""
    return (model(*inputs) - 0.3).square().flatten(1).sum(1)


@dataclass(frozen=True)
class Case:
    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    loss: Callable[..., Tensor] = squares


def floats(*shape: int) -> Callable[[int], Inputs]:
    return lambda b: (torch.randn(b, *shape),)


def ids(length: int, words: int = 11) -> Callable[[int], Inputs]:
    return lambda b: (torch.randint(0, words, (b, length)),)


def labelled(*shape: int) -> Callable[[int], Inputs]:
    return lambda b: (torch.randn(b, *shape), torch.randint(0, 4, (b,)))


class Forward(nn.Module):
    """A module of these parts, of which tensors are buffers, and a function of it and the inputs for its pass."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        return self._forward(self, *inputs)


class InBackward(torch.autograd.Function):
    """The identity, whose backward pass gives what a function makes of the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, of_gradient: Callable[[Tensor], Tensor]) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.of_gradient = inputs[1]

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor, None]:
        return ctx.of_gradient(dy[0]), None


def parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape) * 0.5)


def of(forward: Callable[..., Tensor], **shapes: tuple[int, ...]) -> Callable[[], nn.Module]:
    return lambda: Forward(forward, **{name: parameter(*shape) for name, shape in shapes.items()})


def mlp() -> nn.Module:
    first = nn.Linear(6, 8), nn.ReLU(inplace=True)
    return nn.Sequential(*first, nn.Linear(8, 8, bias=False), nn.Tanh(), nn.Linear(8, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, (3, 5), stride=(2, 1), padding=(1, 3), dilation=(2, 1)),
        nn.GroupNorm(2, 8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 12, 3, padding="same", groups=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 6, 2, bias=False),
        nn.Flatten(),
        nn.Linear(18, 4),
    )


def recurrent() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], 7, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = torch.tanh(m.w(x[:, t]) + m.u(h) * m.scale + m.shift)
        return m.out(h)

    return Forward(
        forward, w=nn.Linear(5, 7), u=nn.Linear(7, 7), scale=parameter(7), shift=parameter(1, 7), out=nn.Linear(7, 4)
    )


def residual_with_downsampling() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return F.relu(m.norm(m.conv(x)) + m.down(x)).mean((2, 3))

    conv, down = nn.Conv2d(3, 6, 3, stride=2, padding=1), nn.Conv2d(3, 6, 1, stride=2, bias=False)
    return Forward(forward, conv=conv, norm=nn.GroupNorm(3, 6), down=down)


def attention() -> nn.Module:
    """Packed projections by chunk, a causal mask, a class token, positions from ``arange``, a feed-forward residual."""

    def forward(m: Forward, x: Tensor) -> Tensor:
        x = m.norm(x + m.positions(torch.arange(x.shape[1]))) + m.token.expand(x.shape[0], -1, -1)
        q, k, v = (F.linear(x, w) for w in m.packed.chunk(3))
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=m.mask)
        return (x + m.down(F.gelu(m.up(x)))).mean(1)

    embedded = {"positions": nn.Embedding(9, 6), "norm": nn.LayerNorm(6), "token": parameter(1, 1, 6)}
    attended = {"packed": parameter(18, 6), "mask": torch.ones(5, 5).tril().bool()}
    return Forward(forward, **embedded, **attended, up=nn.Linear(6, 10), down=nn.Linear(10, 6))


def tied_words() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(m.table(x)), m.table.weight)

    return Forward(forward, table=nn.Embedding(11, 5))


def twice(layer: nn.Module) -> nn.Module:
    return Forward(lambda m, x: m.layer(torch.tanh(m.layer(x))), layer=layer)


def frozen_layer() -> nn.Module:
    model = mlp()
    model[2].requires_grad_(False)
    return model


def frozen_weight_trained_bias() -> nn.Module:
    model = cnn()
    for k in (0, 3, 8):
        model[k].weight.requires_grad_(False)
    return model


def low_rank_on_frozen() -> nn.Module:
    parts = {"base": nn.Linear(6, 4).requires_grad_(False), "a": parameter(2, 6), "b": parameter(4, 2)}
    return Forward(lambda m, x: F.linear(x, m.base.weight + m.b @ m.a, m.base.bias), **parts)


def tied_transposed(m: Forward, x: Tensor) -> Tensor:
    return torch.tanh(F.linear(x, m.w)) @ m.w + F.linear(F.linear(x, m.w), m.w.t())


def normalised_weight(m: Forward, x: Tensor) -> Tensor:
    w = m.w - m.w.mean(1, keepdim=True)
    return F.linear(x, w / w.norm(dim=1, keepdim=True))


def written_into(m: Forward, x: Tensor) -> Tensor:
    z = m.p.expand(x.shape[0], -1).clone()
    z += x
    return z * x


def accumulated_bias(m: Forward, x: Tensor) -> Tensor:
    h = F.linear(x, m.w)
    h += m.p
    return h * h


def put_together(m: Forward, x: Tensor) -> Tensor:
    h = torch.zeros(6, dtype=x.dtype)
    h[1:4] = m.p
    h[4] = m.q
    return x * (h * m.w)


def activated_in_place(m: Forward, x: Tensor) -> Tensor:
    h = F.linear(x, m.w)
    h += m.p
    return F.relu_(h)


def elementwise(m: Forward, x: Tensor) -> Tensor:
    x = (m.a + x) * m.b - m.c
    x = (m.d - x) / (m.e.abs() + 2)
    return m.f * x + m.g / (x * x + 1) + torch.add(x, m.h, alpha=-2) + x * m.scalar + m.scalar


ELEMENTWISE = {"d": (1, 3, 4), "e": (3, 1), "f": (3, 4), "h": (1, 4), "scalar": (), **dict.fromkeys("abcg", (4,))}


def two_calls(model: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    return (model(x) - model(z)).square().sum(1)


def two_heads(model: nn.Module, x: Tensor) -> Tensor:
    first, second = model(x)
    return first.square().sum(1) + second.abs().sum(1)


def with_two_heads() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(m.body(x))
        return m.first(h), m.second(h)

    return Forward(forward, body=nn.Linear(6, 5), first=nn.Linear(5, 3), second=nn.Linear(5, 2))


def padded_words() -> nn.Module:
    return Forward(lambda m, x: m.table(x).sum(1), table=nn.Embedding(11, 5, padding_idx=3))


def repeated_and_padding(b: int) -> Inputs:
    x = torch.randint(0, 11, (b, 6))
    x[:, 1] = x[:, 0]
    x[-1] = 3
    return (x,)


def channels_last(b: int) -> Inputs:
    return torch.randn(b, 9, 6, 3).permute(0, 3, 1, 2), torch.zeros(b).long()


def scale_is_shift(m: Forward, x: Tensor) -> Tensor:
    return F.layer_norm(x, (6,), m.p, m.p)


def overlapping_views(m: Forward, x: Tensor) -> Tensor:
    return x + m.p.expand(5, -1) + m.q.unfold(0, 4, 1)


def masked(m: Forward, x: Tensor) -> Tensor:
    return F.linear(x, m.w * (torch.arange(24, device=x.device) % 5 > 1).view(4, 6))


def products(m: Forward, x: Tensor) -> Tensor:
    return torch.addmm(m.b, x, m.w, alpha=0.5, beta=3) @ m.v


CASES = [
    Case("mlp with in-place relu", mlp, labelled(6), cross_entropy),
    Case("cnn with uneven axes", cnn, labelled(3, 9, 6), cross_entropy),
    Case("residual with 1x1 downsampling", residual_with_downsampling, floats(3, 7, 5)),
    Case("conv on channels last", cnn, channels_last, cross_entropy),
    Case("python-loop recurrent", recurrent, floats(5, 5)),
    Case("attention", attention, floats(5, 6)),
    Case("one parameter in two places of one operation", of(scale_is_shift, p=(6,)), floats(4, 6)),
    Case("linear called twice", lambda: twice(nn.Linear(6, 6)), floats(6)),
    Case("conv called twice", lambda: twice(nn.Conv2d(2, 2, 3, padding=1)), floats(2, 5, 4)),
    Case("tied embedding and output", tied_words, ids(6)),
    Case("tied, ids of 32 bits", tied_words, lambda b: (torch.randint(0, 11, (b, 6), dtype=torch.int32),)),
    Case("tied transposed", of(tied_transposed, w=(7, 5)), floats(5)),
    Case("padding row", padded_words, repeated_and_padding),
    Case("frozen layer", frozen_layer, labelled(6), cross_entropy),
    Case("frozen weights, trained biases", frozen_weight_trained_bias, labelled(3, 9, 6), cross_entropy),
    Case("unused parameter", lambda: Forward(lambda m, x: m.a(x), a=nn.Linear(6, 4), unused=parameter(3)), floats(6)),
    Case("weight under a mask", of(masked, w=(4, 6)), floats(6)),
    Case("low rank on a frozen base", low_rank_on_frozen, floats(6)),
    Case("standardised weight", of(normalised_weight, w=(4, 6)), floats(6)),
    Case("overlapping views", of(overlapping_views, p=(1, 4), q=(8,)), floats(5, 4)),
    Case("slices that overlap", of(lambda m, x: F.linear(x, m.w[:3]) + F.linear(x, m.w[2:5]), w=(6, 4)), floats(4)),
    Case("parameter of two heads", with_two_heads, floats(6), two_heads),
    Case("two calls in one loss", mlp, lambda b: (torch.randn(b, 6), torch.randn(b, 6)), two_calls),
    Case("elementwise", of(elementwise, **ELEMENTWISE), floats(3, 4)),
    Case("data written into a weight", of(written_into, p=(4,)), floats(4)),
    Case("bias added in place", of(accumulated_bias, w=(4, 6), p=(4,)), floats(6)),
    Case("weight put together", of(put_together, p=(3,), q=(), w=(6,)), floats(4, 6)),
    Case("bias activated in place", of(activated_in_place, w=(4, 6), p=(4,)), floats(6)),
    Case("matrix products", of(products, w=(6, 4), b=(4,), v=(4,)), floats(6), lambda model, x: model(x).square()),
    Case(
        "layer norms",
        lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((3, 4)), nn.RMSNorm(4), nn.LayerNorm(4, bias=False)),
        floats(2, 3, 4),
    ),
    Case(
        "part of the graph detached",
        lambda: Forward(lambda m, x: m.b(m.a(x).detach() + x) + m.a(x), a=nn.Linear(6, 6), b=nn.Linear(6, 6)),
        floats(6),
    ),
    Case("checkpointed", lambda: Forward(lambda m, x: checkpoint(m.a, x, use_reentrant=False), a=mlp()), floats(6)),
]
