"""Features of PyTorch modules: each is exact, or refused with an alternative."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize, prune
from torch.utils.checkpoint import checkpoint

from engine_check import check, measured
from model_cases import Case, Forward, Inputs, channels_last, cnn, floats, ids, labelled, mlp, of, parameter, squares
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import BookKeeping, PerExampleLoop, ReweightGP
from noisette.core.clip import Engine
from noisette.core.release import ROUNDING
from oracle import clipped_sum
from small_loop import losses as cross_entropy

CAUSAL = torch.ones(4, 4).triu(1).bool()
WITH_RULES = [BookKeeping(), ReweightGP()]
every_engine = pytest.mark.parametrize("engine", [*WITH_RULES, PerExampleLoop()], ids=lambda e: type(e).__name__)


def frozen(*kinds: type[nn.Module] | str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = cnn()
        for module in model.modules():
            for name, p in module.named_parameters(recurse=False):
                p.requires_grad_(
                    not (isinstance(module, tuple(k for k in kinds if not isinstance(k, str))) or name in kinds)
                )
        return model

    return make


def shared_across() -> nn.Module:
    parts = {"words": nn.Embedding(6, 6), "first": nn.Linear(6, 6), "second": nn.Linear(6, 6, bias=False)}
    model = Forward(lambda m, x: F.linear(m.second(torch.tanh(m.first(m.words(x)))), m.first.weight.t()), **parts)
    model.second.weight = model.first.weight
    model.words.weight = model.first.weight
    return model


def lists() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        for w in m.weights:
            x = torch.tanh(x @ w) * m.named["scale"] + m.named["shift"]
        return m.branches["a"](x) - m.branches["b"](x)

    return Forward(
        forward,
        weights=nn.ParameterList([parameter(5, 5) for _ in range(3)]),
        named=nn.ParameterDict({"scale": parameter(5), "shift": parameter(5)}),
        branches=nn.ModuleDict({"a": nn.Linear(5, 4), "b": nn.Linear(5, 4)}),
    )


def class_token(m: Forward, x: Tensor) -> Tensor:
    x = torch.cat([m.token.expand(x.shape[0], -1, -1), x @ m.embed, m.last.expand(x.shape[0], 1, 6)], dim=1)
    return torch.tanh(x + m.positions).mean(1)


def heads(m: Forward, x: Tensor) -> Tensor:
    q, k = torch.einsum("btd,hdk->bhtk", x, m.q), torch.einsum("hdk,btd->bhtk", [m.k, x])
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


def weighted_bags(m: Forward, x: Tensor, w: Tensor) -> Tensor:
    bags = partial(F.embedding_bag, x, m.t, mode="sum")
    return bags(per_sample_weights=w) + bags(per_sample_weights=m.own.expand(len(x), -1))


def low() -> nn.Module:
    return Forward(lambda m, w: w + 0.5 * m.b @ m.a, a=parameter(2, 6), b=parameter(4, 2))


def parametrized(layer: nn.Module, how: nn.Module) -> nn.Module:
    parametrize.register_parametrization(layer, "weight", how)
    layer.parametrizations.weight.original.requires_grad_(not isinstance(how, Forward))
    return layer


def pruned() -> nn.Module:
    layer = nn.Linear(6, 4)
    prune.random_unstructured(layer, "weight", amount=0.4)
    return nn.Sequential(layer)


def old_weight_norm() -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 4)))


def standardised(m: Forward, x: Tensor) -> Tensor:
    spread, mean = torch.var_mean(m.w, dim=(1, 2), keepdim=True)
    return F.conv1d(x, (m.w - mean) / (spread + 1e-5).sqrt() * m.gain)


def written_into_data(m: Forward, x: Tensor) -> Tensor:
    x = F.linear(x, m.w)
    x[:, 0] = m.p
    return x * x


def in_heads(x: Tensor, n: int = 2) -> Tensor:
    return x.unflatten(-1, (n, -1)).transpose(1, 2)


def across(layer: nn.Module) -> nn.Module:
    def forward(m: Forward, x: Tensor, padding: Tensor) -> Tensor:
        query, memory = x[:, :3], torch.tanh(x[:, 3:])
        return m.layer(query, memory, memory, key_padding_mask=padding, attn_mask=m.mask)[0]

    return Forward(forward, layer=layer, mask=torch.tensor([[False] * 4, [False, True] * 2, [False] * 3 + [True]]))


def padded(length: int, *shape: int) -> Callable[[int], Inputs]:
    return lambda b: (torch.randn(b, *shape), torch.arange(length) >= torch.randint(1, length + 1, (b, 1)))


def parameters_of_a_layer(m: Forward, x: Tensor) -> Tensor:
    latents, memory = (p.expand(len(x), -1, -1) for p in (m.latents, m.memory))
    output, weights = m.layer(m.layer(latents, x, x, need_weights=False)[0], memory, memory)
    return torch.cat([output, weights], -1)


def learned_keys_and_values(m: Forward, x: Tensor) -> Tensor:
    read = F.scaled_dot_product_attention(in_heads(F.linear(x, m.w)), m.k, m.v)
    return F.scaled_dot_product_attention(read, m.k[0], m.v[1])


def learned_bias(m: Forward, x: Tensor) -> Tensor:
    place = torch.arange(4)
    table = F.embedding((place[:, None] - place).clamp(-2, 2) + 2, m.table).permute(2, 0, 1)
    q, k, v = (in_heads(part) for part in F.linear(x, m.packed).chunk(3, -1))
    biased = F.scaled_dot_product_attention(q, k, v, attn_mask=table)
    return F.scaled_dot_product_attention(biased, k, v, attn_mask=m.mask.masked_fill(CAUSAL, -torch.inf))


def mha(**settings: object) -> nn.Module:
    return nn.MultiheadAttention(6, 2, **{"batch_first": True} | settings)


def depthwise() -> nn.Module:
    convolution = nn.Conv2d(3, 6, 3, groups=3, bias=False)
    return nn.Sequential(convolution, nn.Tanh(), nn.ConvTranspose2d(6, 6, (2, 1), groups=6, bias=False))


LEFT = {"left": (3, 5), "right": (1, 4, 4), "bias": (4,), "cube": (3, 4, 2), "rows": (2, 4)}
CASES = [
    Case("biases alone", frozen("weight"), labelled(3, 9, 6), cross_entropy),
    Case("norms alone", frozen(nn.Conv2d, nn.Linear), labelled(3, 9, 6), cross_entropy),
    Case("shared by three modules", shared_across, ids(4, 6)),
    Case("lists and dictionaries of parameters", lists, floats(5)),
    Case("channels last", lambda: cnn().to(memory_format=torch.channels_last), channels_last, cross_entropy),
    Case("class token", of(class_token, token=(1, 1, 6), last=(6,), positions=(1, 7, 6), embed=(4, 6)), floats(5, 4)),
    Case("heads by einsum", of(heads, q=(2, 4, 3), k=(2, 4, 3), each=(2, 3, 3), o=(2, 3, 4), gain=(4,)), floats(5, 4)),
    Case("weights on the left", of(left_products, **LEFT), floats(5, 4)),
    Case("scalars to learn", lambda: Forward(temperatures, t=nn.Parameter(torch.tensor(0.7))), floats(3, 4)),
    Case("in place", of(in_place, w=(4, 6), scale=(4,), shift=(4,)), floats(6)),
    Case("sparse embedding", lambda: nn.Embedding(11, 5, sparse=True, padding_idx=2), ids(6)),
    Case("bags by sum", lambda: nn.EmbeddingBag(11, 5, mode="sum", sparse=True), ids(6)),
    Case("bags by mean", lambda: nn.EmbeddingBag(11, 5, mode="mean", padding_idx=3), ids(6)),
    Case("bags by frequency", lambda: nn.EmbeddingBag(11, 5, mode="sum", scale_grad_by_freq=True), ids(6)),
    Case("weighted bags", of(weighted_bags, t=(11, 5), own=(6,)), lambda b: (*ids(6)(b), torch.randn(b, 6))),
    Case("low rank on a frozen weight", lambda: parametrized(nn.Linear(6, 4), low()), floats(6)),
    Case("weight norm", lambda: parametrizations.weight_norm(nn.Conv1d(3, 4, 3), dim=1), floats(3, 6)),
    Case("spectral norm", lambda: parametrizations.spectral_norm(nn.Linear(6, 4)).eval(), floats(6)),
    Case("standardised convolution", of(standardised, w=(4, 3, 3), gain=(4, 1, 1)), floats(3, 6)),
    Case("parameter written into data", of(written_into_data, w=(4, 6), p=(1,)), floats(6)),
    Case("attention across, masked and padded", lambda: across(mha()), padded(4, 7, 6)),
    Case(
        "parameters of a layer",
        lambda: Forward(parameters_of_a_layer, layer=mha(), latents=parameter(1, 3, 6), memory=parameter(1, 3, 6)),
        floats(4, 6),
    ),
    Case("learned keys and values", of(learned_keys_and_values, w=(6, 6), k=(2, 5, 3), v=(2, 5, 3)), floats(4, 6)),
    Case("learned bias of positions", of(learned_bias, packed=(18, 6), table=(5, 2), mask=(4, 4)), floats(4, 6)),
    Case("depthwise", depthwise, floats(3, 5, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_engines_agree_with_the_oracle(case: Case) -> None:
    for b in (7, 2, 1):
        check(case, BookKeeping(), b=b, dtype=torch.float64)
    check(case, *WITH_RULES, b=6, dtype=torch.float32)
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


@pytest.mark.parametrize("engine", WITH_RULES, ids=lambda e: type(e).__name__)
def test_instance_norm_that_tracks_private_data_is_refused(engine: Engine) -> None:
    model = nn.Sequential(nn.Conv1d(2, 4, 3), nn.InstanceNorm1d(4, affine=True, track_running_stats=True))
    with pytest.raises(PrivacyError, match="running statistics"):
        measured(model, squares, (torch.randn(3, 2, 6),), 1.0, engine)


# Random operations: the draws are part of the graph, so the reference is the gradient of each loss on that graph


def clipped_on_one_graph(model: nn.Module, losses: Tensor, bound: float) -> Tensor:
    params = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(sum(p.numel() for p in params), dtype=losses.dtype)
    for loss in losses:
        gradients = torch.autograd.grad(loss, params, retain_graph=True, materialize_grads=True)
        vector = torch.cat([g.flatten() for g in gradients])
        total += vector * min(1.0, bound / max(float(vector.norm()), 1e-30))
    return total


def of_random_depth(m: Forward, x: Tensor) -> Tensor:
    for block in m.blocks:
        x = x + block(x).tanh() * (torch.rand(len(x), 1) > 0.4).to(x.dtype)
    return x


RANDOM = {
    "dropout": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.ReLU(), nn.Dropout1d(0.3), nn.Linear(8, 6)),
    "dropout in place": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, 6)),
    "noise on activations": lambda: Forward(
        lambda m, x: m.b(m.a(x) + torch.randn(len(x), 5).to(x.dtype)), a=nn.Linear(6, 5), b=nn.Linear(5, 6)
    ),
    "depth of each example": lambda: Forward(of_random_depth, blocks=nn.ModuleList(nn.Linear(6, 6) for _ in range(4))),
}
every_random = pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)


@every_random
@pytest.mark.parametrize("engine", WITH_RULES, ids=lambda e: type(e).__name__)
def test_draws_of_the_forward_pass_are_those_of_the_sum(make: Callable[[], nn.Module], engine: Engine) -> None:
    model, x = make().double().train(), torch.randn(7, 6, dtype=torch.float64)
    for bound in (1e-3, 1.0, 1e3):
        torch.manual_seed(5)
        losses = torch.func.vmap(lambda one: squares(model, one[None]).sum(), randomness="different")(x)
        truth = clipped_on_one_graph(model, losses, bound)
        torch.manual_seed(5)
        sums = measured(model, squares, (x,), bound, engine)[1]
        found = torch.cat([g.flatten() for g in sums.values()])
        assert float((found - truth).norm()) <= 1e-10 * float(truth.norm())


@every_engine
@every_random
def test_one_example_under_random_draws_stays_within_the_bound(make: Callable[[], nn.Module], engine: Engine) -> None:
    model = make().train()
    for _ in range(10):
        sums = measured(model, squares, (10 * torch.randn(1, 6),), 0.01, engine)[1]
        assert 0 < float(torch.cat([g.flatten() for g in sums.values()]).norm()) <= 0.01 * (1 + ROUNDING)


def checkpointed(reentrant: bool, *, input_needs_gradient: bool = False) -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        x = m.before(x) if not input_needs_gradient else x.requires_grad_()
        return m.after(checkpoint(m.inside, x, use_reentrant=reentrant))

    return Forward(forward, before=nn.Linear(6, 6), inside=mlp(), after=nn.Linear(4, 3))


@pytest.mark.filterwarnings("ignore")
@every_engine
@pytest.mark.parametrize("input_needs_gradient", [False, True])
def test_reentrant_checkpoints_run_once_and_are_exact(engine: Engine, input_needs_gradient: bool) -> None:
    model = checkpointed(True, input_needs_gradient=input_needs_gradient).double()
    other = checkpointed(False, input_needs_gradient=input_needs_gradient).double()
    other.load_state_dict(model.state_dict())
    x = torch.randn(4, 6, dtype=torch.float64)
    truth = clipped_sum(other, squares, (x,), 0.5)
    for name, g in measured(model, squares, (x,), 0.5, engine)[1].items():
        torch.testing.assert_close(g, truth.sums[name], rtol=1e-10, atol=1e-12)


PLACES = {
    "the call": lambda model, compiled: (model, compiled),
    "the model": lambda model, compiled: (compiled, compiled),
    "a part": lambda model, compiled: (whole := nn.Sequential(compiled), whole),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_compiled_is_exact(place, request: pytest.FixtureRequest) -> None:
    torch._dynamo.reset()
    request.addfinalizer(torch._dynamo.reset)
    torch.manual_seed(5)
    model, x = twice_in_a_loop().double(), torch.randn(5, 6, dtype=torch.float64)
    expected = measured(model, squares, (x,), 0.5, BookKeeping())[1]
    bounded, called = place(model, torch.compile(model, backend="aot_eager"))
    clip = PerExampleClip(bounded, 0.5, capture="eager")
    for _ in range(3):  # later calls reuse the compiled code
        clip.accumulate(lambda _, x: squares(called, x), x)
        [total] = clip.pop_sums()
        for found, truth in zip(total.grads, expected.values(), strict=True):
            torch.testing.assert_close(found, truth, rtol=1e-10, atol=1e-13)
    clip.close()


def twice_in_a_loop() -> nn.Module:
    def forward(m: Forward, x: Tensor) -> Tensor:
        for _ in range(2):
            x = torch.tanh(m.layer(x)) * m.scale
        return x

    return Forward(forward, layer=nn.Linear(6, 6), scale=parameter(6))
