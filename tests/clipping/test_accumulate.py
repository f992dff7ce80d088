"""The loss of one example, vectorised: sums against the oracle, nested batches, errors in words, outside tensors."""

import copy
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint as checkpointing
from torch import Tensor, nn

from captured_models import entropy
from engine_check import Watched, check
from model_cases import Case, Forward, floats
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import BookKeeping, OneByOneWarning, ReweightGP, Vmap
from noisette.core.clip import Engine
from oracle import example_gradients

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array")


def accumulated(model, loss, *batch, bound=1.0, engine=None, **keywords) -> tuple[Tensor, dict[str, Tensor]]:
    watched = Watched(engine or BookKeeping())
    clip = PerExampleClip(model, bound, engine=watched)
    clip.accumulate(loss, *batch, **keywords)
    [total] = clip.pop_sums()
    norms = torch.cat(watched.norms).double() if watched.norms else torch.zeros(0)
    return norms, dict(zip(clip.parameters, (g.double() for g in total.grads), strict=True))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def rows(b: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(b, 3, dtype=torch.float64), torch.randint(0, 2, (b,))


class Encoding(UserDict[str, Any]):
    """A mapping that is no dictionary, as tokenizers return."""


@dataclass(frozen=True)
class Record:
    x: Tensor
    y: Tensor
    name: str = "a"


NESTED: dict[str, tuple[Callable[..., tuple[tuple[Any, ...], dict[str, Any]]], Callable[..., Tensor]]] = {
    "dictionary": (
        lambda x, y: (({"x": x, "y": y, "none": None, "flag": True},), {}),
        lambda m, d: entropy(m, d["x"], d["y"]),
    ),
    "mapping": (lambda x, y: ((Encoding(x=x, y=y),), {}), lambda m, d: entropy(m, d["x"], d["y"])),
    "attributes": (lambda x, y: ((Record(x, y),), {}), lambda m, d: entropy(m, d.x, d.y)),
    "list": (lambda x, y: (([x, (y, None, "text")],), {}), lambda m, d: entropy(m, d[0], d[1][0])),
    "keywords": (lambda x, y: ((), {"y": y, "x": x, "mode": "a"}), lambda m, x, y, mode: entropy(m, x, y)),
}


@pytest.mark.parametrize("name", NESTED)
@pytest.mark.parametrize("engine", [BookKeeping(), Vmap()], ids=["rules", "vmap"])
def test_nested_batches(name: str, engine: Engine) -> None:
    model, (x, y) = net(), rows()
    truth = example_gradients(model, entropy, (x, y)).clipped(0.1)
    arrange, loss = NESTED[name]
    args, kwargs = arrange(x, y)
    norms, sums = accumulated(model, loss, *args, bound=0.1, engine=engine, **kwargs)
    torch.testing.assert_close(norms, truth.norms)
    for key, value in sums.items():
        torch.testing.assert_close(value, truth.sums[key])


def part(forward: Callable[..., Any], **others: Any) -> nn.Module:
    return Forward(forward, layer=nn.Linear(3, 2).double(), **others)


def of_model(model: nn.Module, *inputs: Tensor) -> Tensor:
    return model(*inputs).square().sum()


def writes_into_parameter(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.layer.weight.mul_(x.mean())
    return m.layer(x)


def writes_into_view_of_parameter(m: Any, x: Tensor) -> Tensor:
    row = m.layer.weight[0]
    with torch.no_grad():
        row.add_(x.mean())
    return m.layer(x)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double(),
        r"1 \(BatchNorm1d\).*convert_batch_norm",
    ),
    "parameter": (lambda: part(writes_into_parameter), "into a parameter"),
    "view of a parameter": (lambda: part(writes_into_view_of_parameter), "into a parameter"),
}


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("b", [1, 3])
def test_what_cannot_be_vectorised_is_refused_in_words(name: str, b: int) -> None:
    make, words = REFUSED[name]
    model = make()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PrivacyError, match=words):
        accumulated(model, of_model, rows(b)[0])
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key]) or key.endswith("num_batches_tracked")  # counts calls, not examples


@pytest.mark.parametrize("loss", [lambda m, x: m(x), lambda m, x: 1.0, lambda m, x: m(torch.cat([x, x])).sum(1)])
def test_a_loss_is_one_value(loss: Callable[..., Any]) -> None:
    with pytest.raises(PrivacyError, match="a tensor with one value"):
        accumulated(net(), loss, rows()[0])


def remembers(m: Any, x: Tensor) -> Tensor:
    before = m.kept[-1] if m.kept else torch.zeros(3, dtype=torch.float64)
    m.kept.append((2 * x).detach())
    return m.layer(x + before)


def test_values_of_the_examples_of_an_earlier_call_are_refused() -> None:
    clip = PerExampleClip(part(remembers, kept=[]), 1.0)
    clip.accumulate(of_model, rows()[0])
    for _ in range(2):
        with pytest.raises(PrivacyError, match="an earlier call has computed from other examples"):
            clip.accumulate(of_model, rows()[0])


def test_each_example_has_a_mask_of_its_own_and_its_gradient_has_it_too() -> None:
    """One layer without bias under dropout: the gradient of each example is its input under its mask."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(40, 1, bias=False)).double()
    x = torch.ones(6, 40, dtype=torch.float64)
    masks: list[Tensor] = []
    for engine in (BookKeeping(), ReweightGP()):
        torch.manual_seed(3)
        _, sums = accumulated(model, lambda m, x: m(x).sum(), x, bound=1e6, engine=engine)
        masks.append(sums["1.weight"])
    assert torch.equal(masks[0], masks[1])
    counts = masks[0] / 2
    assert torch.equal(counts, counts.round())
    assert len(counts.unique()) > 2  # with one mask for all examples the counts would be 0 and 6 alone


NOISE: dict[str, Callable[[Tensor], Tensor]] = {
    "rand": lambda x: torch.rand(3, dtype=x.dtype),
    "uniform_": lambda x: torch.empty(3, dtype=x.dtype).uniform_(),
    "rrelu": lambda x: F.rrelu(-x[0], training=True),
    "bernoulli": lambda x: torch.bernoulli(torch.full((30,), 0.5, dtype=x.dtype)).view(3, 10) @ x.new_ones(10),
    "dropout of a constant": lambda x: F.dropout(torch.ones(3, 30, dtype=x.dtype)).sum(1),
}


@pytest.mark.parametrize("name", NOISE)
def test_random_numbers_are_drawn_for_each_example(name: str) -> None:
    """The gradient of the weight that the noise multiplies is the noise: it is another one in each example."""
    model = Forward(lambda m, x: (m.p * NOISE[name](x)).sum() + 0 * x.sum(), p=nn.Parameter(torch.ones(3).double()))
    norms, _ = accumulated(model, lambda m, x: m(x), torch.ones(8, 3, dtype=torch.float64))
    assert len(norms.unique()) > 2


def test_one_value_for_all_examples_is_not_used() -> None:
    """``vmap`` itself reduces over the examples in one private operation that distributions check values with."""
    loss = lambda m, x: m(x).sum() * (2.0 if torch._is_any_true(x > 1e3) else 1.0)  # noqa: E731
    with pytest.warns(OneByOneWarning, match="gives one value for all examples"):
        accumulated(net(), loss, rows()[0])


CHECKED: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "distribution": lambda m, x: torch.distributions.Exponential(x.square()).log_prob(m(x).square().sum()).sum(),
    "tensor": lambda m, x: _checked(x) * m(x).square().sum(),
}


def _checked(x: Tensor) -> float:
    torch._check_tensor_all(x == x)
    return 1.0


@pytest.mark.parametrize("name", CHECKED)
def test_whether_values_are_valid_decides_nothing(name: str) -> None:
    """Models of transformers check so that there are as many image tokens as parts of images."""
    x = rows()[0]
    _, one = accumulated(net(), CHECKED[name], x[:2])
    x[2] = torch.nan
    assert one
    accumulated(net(), CHECKED[name], x)


class Double(torch.autograd.Function):
    """With a rule for vmap that PyTorch generates."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0] * 4 * ctx.saved_tensors[0]


def filled_table(m: Any, x: Tensor) -> Tensor:
    out = torch.zeros(x.shape[0], 4, dtype=x.dtype)
    out[:, 0] = x[:, 0]
    out[:, 1:3] += m.layer(x)
    other = torch.ones(2, dtype=x.dtype) * 3
    other[1] = x[0, 0]
    return out * 2 + other.sum()


def marked(m: Any, x: Tensor) -> Tensor:
    h = m.layer(x)
    h[h > 0] = 0.5
    y = m.layer(-x)
    y[x[:, :2] < 0] = torch.tensor(-2.0, dtype=x.dtype)
    rows = m.layer(x)
    rows[x[:, 0] < 0] = m.layer.bias
    filled = torch.zeros(1, 2, dtype=x.dtype)
    filled[x[:, 0] > 0] = 1
    return h * y + m.layer(x) * rows + filled


def in_place(m: Any, x: Tensor) -> Tensor:
    h = F.relu_(m.layer(x)).clone()
    h.add_(x[:, :2]).mul_(2).clamp_(max=3)
    h.masked_fill_(x[:, :2] > 1, 0.1)
    h += m.layer(x)
    return h.sub_(m.layer.bias)


FEATURES: dict[str, Callable[..., Tensor]] = {
    "factories": filled_table,
    "boolean masks": marked,
    "in place": in_place,
    "autograd function": lambda m, x: Double.apply(m.layer(x)),
    "inner gradient": lambda m, x: m.layer(x) * torch.func.grad(lambda v: v.sin().sum())(x).sum(),
    "inner vmap": lambda m, x: torch.func.vmap(lambda row: row.cos() * 2)(m.layer(x)) + torch.vmap(m.layer)(x),
    "rows one by one": lambda m, x: torch.stack([m.layer(row) for row in x]) + sum(v for v in x[0]),
    "weights under no_grad first": lambda m, x: (
        m.layer(x) * (m.layer.weight @ x.detach().T).sum().detach() + no_grad_first(m, x)
    ),
    "outer product": lambda m, x: torch.outer(m.layer.bias, x[0]).sum(0, keepdim=True) + m.layer(x).sum(),
    "weight in cdist": lambda m, x: torch.cdist(x, m.layer.weight).exp(),
    "weight indexed by data": lambda m, x: m.layer.weight[(x[0, 0] > 0).long()] * x + m.layer(x).sum(),
    "weight gathered": lambda m, x: torch.gather(m.layer.weight, 0, (x > 0).long()) + m.layer(x).sum(),
    "index_add": lambda m, x: torch.zeros(5, dtype=x.dtype).index_add(0, (x[0, :2] > 0).long(), m.layer(x)[0]),
}


def no_grad_first(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = torch.cdist(x, m.layer.weight).sum()
    return torch.cdist(x, m.layer.weight) * scale


@pytest.mark.parametrize("name", FEATURES)
def test_what_models_do_is_exact(name: str) -> None:
    torch.manual_seed(0)
    case = Case(name, lambda: part(FEATURES[name]), floats(3), of_model)
    for b in (5, 1):
        check(case, BookKeeping(), b=b, dtype=torch.float64)


def test_what_is_told_to_code_is_taken_back_after_an_error() -> None:
    generator = checkpointing._checkpoint_without_reentrant_generator
    with pytest.raises(PrivacyError, match="writes values of an example into a parameter"):
        accumulated(part(writes_into_parameter), of_model, rows()[0])
    assert checkpointing._checkpoint_without_reentrant_generator is generator
    assert not torch.compiler.is_compiling()
    assert torch._C._functorch.maybe_current_level() is None


def behind_disabled_torch_functions(m: Any, x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return m.layer(x)


def test_uses_of_weights_that_are_not_recorded_take_one_example_after_the_other() -> None:
    model, (x, *_) = part(behind_disabled_torch_functions), rows(3)
    gradients = example_gradients(model, of_model, (x,))
    bound = sorted(gradients.norms)[1] + 1e-3
    with pytest.warns(OneByOneWarning, match="outside the recorded|TorchScript"):
        _, sums = accumulated(model, of_model, x, bound=bound)
    for key, expected in gradients.clipped(bound).sums.items():
        assert float((sums[key] - expected).norm()) <= 1e-7 * bound, key
