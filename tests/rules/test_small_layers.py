"""Every engine on models of smaller operations: concatenation, products, scales, embedding bags, derived weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune

from engine_check import check, measured
from model_cases import Case, Forward, floats, ids, parameter, squares
from noisette import PrivacyError
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine

every_engine = pytest.mark.parametrize(
    "engine", [BookKeeping(), ReweightGP(), PerExampleLoop()], ids=lambda e: type(e).__name__
)
rule_engines = pytest.mark.parametrize("engine", [BookKeeping(), ReweightGP()], ids=lambda e: type(e).__name__)


def class_token(m: Forward, x: Tensor) -> Tensor:
    x = torch.cat([m.token.expand(x.shape[0], -1, -1), m.embed(x), m.last.expand(x.shape[0], 1, 6)], dim=1)
    return torch.tanh(x + m.positions).mean(1)


def heads(m: Forward, x: Tensor) -> Tensor:
    q = torch.einsum("btd,hdk->bhtk", x, m.q)
    k = torch.einsum("hdk,btd->bhtk", [m.k, x])
    mixed = torch.einsum("bhst,bhtk->bhsk", (q @ k.mT).softmax(-1), x.unsqueeze(1)[..., :3])
    return torch.einsum("bhsk,hkd,d->bsd", torch.tanh(mixed @ m.each), m.o, m.gain)


def left_products(m: Forward, x: Tensor) -> Tensor:
    mixed = torch.tanh(m.left @ x)
    mixed = torch.baddbmm(m.bias, mixed, m.right.expand(len(x), -1, -1), beta=0.5)
    return torch.tensordot(mixed, m.cube, dims=2) + torch.inner(mixed, m.rows).sum(1)


def temperatures(m: Forward, x: Tensor) -> Tensor:
    x = x / m.t + m.t - x * m.t.exp() + (m.t - x) / 3 + torch.rsub(x, m.t)
    x = torch.logaddexp(x, m.t) + torch.maximum(x, m.t) + torch.lerp(x, x * x, m.t) + torch.where(x > 0, m.t, x)
    x = torch.addcmul(x, x, m.t, value=0.5) + torch.addcdiv(m.t, x, x * x + 1)
    return torch.pow(x.abs() + 0.5, m.t) + torch.clamp(x, max=m.t)


def in_place(m: Forward, x: Tensor) -> Tensor:
    h = F.linear(x, m.w)
    half = h[:, :2]
    h *= m.scale
    half /= m.scale[:2].abs() + 1
    h -= m.shift
    z = torch.empty_like(h)
    z.copy_(m.shift)
    return z * h + h * half.sum(1, keepdim=True)


class Low(nn.Module):
    """A low-rank product of two factors added to a frozen weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = parameter(2, 6), parameter(4, 2)

    def forward(self, w: Tensor) -> Tensor:
        return w + 0.5 * self.b @ self.a


def parametrized(layer: nn.Module, how: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", how)
    layer.parametrizations.weight.original.requires_grad_(not isinstance(how, Low))
    return layer


def pruned() -> nn.Module:
    layer = nn.Linear(6, 4)
    prune.random_unstructured(layer, "weight", amount=0.4)
    return nn.Sequential(layer)


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)))


def spectral() -> nn.Module:
    return parametrizations.spectral_norm(nn.Linear(6, 4)).eval()


def standardised() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        spread, mean = torch.var_mean(m.w, dim=(1, 2), keepdim=True)
        return F.conv1d(x, (m.w - mean) / (spread + 1e-5).sqrt() * m.gain)

    return Forward(forward, w=parameter(4, 3, 3), gain=parameter(4, 1, 1))


def bags(**settings) -> nn.Module:
    return nn.EmbeddingBag(11, 5, **settings)


def written_into_data(m: Forward, x: Tensor) -> Tensor:
    x = m.layer(x)
    x[:, 0] = m.p
    return x * x


CASES = [
    Case(
        "class token",
        lambda: Forward(
            class_token,
            token=parameter(1, 1, 6),
            last=parameter(6),
            positions=parameter(1, 7, 6),
            embed=nn.Linear(4, 6),
        ),
        floats(5, 4),
    ),
    Case("bilinear", lambda: nn.Bilinear(3, 5, 4), lambda b: (torch.randn(b, 3), torch.randn(b, 5))),
    Case(
        "heads by einsum",
        lambda: Forward(
            heads,
            q=parameter(2, 4, 3),
            k=parameter(2, 4, 3),
            each=parameter(2, 3, 3),
            o=parameter(2, 3, 4),
            gain=parameter(4),
        ),
        floats(5, 4),
    ),
    Case(
        "weights on the left",
        lambda: Forward(
            left_products,
            left=parameter(3, 5),
            right=parameter(1, 4, 4),
            bias=parameter(4),
            cube=parameter(3, 4, 2),
            rows=parameter(2, 4),
        ),
        floats(5, 4),
    ),
    Case("one slope", lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU()), floats(6)),
    Case("slope of each channel", lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.PReLU(4)), floats(3, 8)),
    Case(
        "instance norm", lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)), floats(2, 5, 6)
    ),
    Case("scalars to learn", lambda: Forward(temperatures, t=nn.Parameter(torch.tensor(0.7))), floats(3, 4)),
    Case("in place", lambda: Forward(in_place, w=parameter(4, 6), scale=parameter(4), shift=parameter(4)), floats(6)),
    Case(
        "sparse embedding",
        lambda: Forward(lambda m, x: m.t(x), t=nn.Embedding(11, 5, sparse=True, padding_idx=2)),
        ids(6),
    ),
    Case("bags by sum", lambda: bags(mode="sum", sparse=True), ids(6)),
    Case("bags by mean", lambda: bags(mode="mean", padding_idx=3), ids(6)),
    Case("bags that scale by frequency", lambda: bags(mode="sum", scale_grad_by_freq=True), ids(6)),
    Case(
        "weighted bags",
        lambda: Forward(
            lambda m, x, w: (
                F.embedding_bag(x, m.t, mode="sum", per_sample_weights=w)
                + F.embedding_bag(x, m.t, mode="sum", per_sample_weights=m.shares.expand(len(x), -1))
            ),
            t=parameter(11, 5),
            shares=parameter(6),
        ),
        lambda b: (torch.randint(0, 11, (b, 6)), torch.randn(b, 6)),
    ),
    Case("low rank on a frozen weight", lambda: parametrized(nn.Linear(6, 4), Low()), floats(6)),
    Case("weight norm", lambda: parametrizations.weight_norm(nn.Conv1d(3, 4, 3), dim=1), floats(3, 6)),
    Case("spectral norm", spectral, floats(6)),
    Case("standardised convolution", standardised, floats(3, 6)),
    Case(
        "parameter written into data",
        lambda: Forward(written_into_data, layer=nn.Linear(6, 4), p=parameter(1)),
        floats(6),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engines_agree_with_the_oracle(case: Case) -> None:
    for b in (7, 2, 1):
        check(case, BookKeeping(), b=b, dtype=torch.float64)
    check(case, BookKeeping(), b=6, dtype=torch.float32)
    check(case, ReweightGP(), b=6, dtype=torch.float64)
    check(case, PerExampleLoop(), b=2, dtype=torch.float64)


@every_engine
@pytest.mark.parametrize("build", [pruned, old_weight_norm])
def test_weights_that_a_hook_computes(build: Callable[[], nn.Module], engine: Engine) -> None:
    """Such a module cannot be copied, so the reference is its own gradient of one example at a time."""
    model, x, bound = build().double(), torch.randn(5, 6).double(), 1.5
    parameters = dict(model.named_parameters())
    each = [torch.autograd.grad(squares(model, row).sum(), list(parameters.values())) for row in x.split(1)]
    truth = torch.stack([torch.cat([g.flatten() for g in gradients]) for gradients in each])
    norms, sums = measured(model, squares, (x,), bound, engine)
    torch.testing.assert_close(norms, truth.norm(dim=1))
    expected = (truth * (bound / truth.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
    torch.testing.assert_close(torch.cat([sums[name].flatten() for name in parameters]), expected)


@rule_engines
def test_instance_norm_that_tracks_private_data_is_refused(engine: Engine) -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    with pytest.raises(PrivacyError, match="running statistics"):
        measured(model, squares, (torch.randn(3, 2, 6),), 1.0, engine)
