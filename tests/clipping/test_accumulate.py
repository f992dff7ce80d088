"""The loss of one example, vectorised: sums against the oracle, nested batches, errors in words, outside tensors."""

from __future__ import annotations

import copy
import warnings
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine_check import ENGINES, TOLERANCE, Watched, cast
from model_cases import CASES, Case
from noisette import PerExampleClip, PrivacyError
from noisette.clipping.engines import BookKeeping, Vmap
from noisette.clipping.norms import Engine
from oracle import example_gradients

pytestmark = pytest.mark.filterwarnings("ignore:The given NumPy array")


def accumulated(
    model: nn.Module,
    loss: Callable[..., Tensor],
    *batch: Any,
    bound: float = 1.0,
    engine: Engine | None = None,
    **keywords: Any,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Norms and clipped sum of one call of ``accumulate``."""
    watched = Watched(engine or BookKeeping())
    clip = PerExampleClip(model, bound, engine=watched)
    try:
        clip.accumulate(loss, *batch, **keywords)
        [total] = clip.pop_sums()
    finally:
        clip.close()
    norms = torch.cat(watched.norms).double() if watched.norms else torch.zeros(0)
    return norms, dict(zip(clip.parameters, (g.double() for g in total.grads), strict=True))


def assert_exact(
    model: nn.Module,
    loss: Callable[..., Tensor],
    *batch: Tensor,
    engine: Engine | None = None,
    tolerance: float = 1e-10,
) -> None:
    """Norms and sums are the oracle's with some examples clipped; the model is left as it was."""
    gradients = example_gradients(model, loss, batch)
    truth_norms = torch.tensor(gradients.norms, dtype=torch.float64)
    bound = float(truth_norms.median() + 1e-3)
    truth = gradients.clipped(bound)
    before = copy.deepcopy(model.state_dict())
    norms, sums = accumulated(model, loss, *batch, bound=bound, engine=engine)
    torch.testing.assert_close(norms, truth.norms, rtol=tolerance, atol=tolerance)
    assert sums.keys() == truth.sums.keys()
    scale = float(truth.norms.clamp(max=bound).norm())
    for name, expected in truth.sums.items():
        assert float((sums[name] - expected).norm()) <= tolerance * scale, name
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_sums_of_every_model(case: Case, engine: Engine) -> None:
    if isinstance(engine, Vmap) and case.name == "data written into a weight":
        pytest.skip("torch.func cannot repeat it")
    for b, dtype in [(7, torch.float64), (1, torch.float64), (2, torch.float64), (6, torch.float32)]:
        model, inputs = case.model().to(dtype), cast(case.inputs(b), dtype)
        assert_exact(model, case.loss, *inputs, engine=engine, tolerance=TOLERANCE[dtype])


# Nested batches


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y)


def rows(b: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(b, 3, dtype=torch.float64), torch.randint(0, 2, (b,))


class Encoding(UserDict[str, Any]):
    """A mapping that is no dictionary, as tokenizers return."""


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


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
    "named tuple": (lambda x, y: ((Pair(x, y),), {}), lambda m, d: entropy(m, d.x, d.y)),
    "list": (lambda x, y: (([x, (y, None, "text")],), {}), lambda m, d: entropy(m, d[0], d[1][0])),
    "deep": (lambda x, y: (({"a": [Pair(x, y)]}, None, 1.0), {}), lambda m, d, n, s: s * entropy(m, *d["a"][0])),
    "keywords": (lambda x, y: ((), {"y": y, "x": x, "mode": "a"}), lambda m, x, y, mode: entropy(m, x, y)),
    "one tensor twice": (lambda x, y: ((x, x, y), {}), lambda m, x, z, y: entropy(m, (x + z) / 2, y)),
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


# Errors in words


class Part(nn.Module):
    """A model with one layer and a function of it."""

    def __init__(self, forward: Callable[..., Any], **buffers: Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2).double()
        self._forward = forward
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, *inputs: Tensor) -> Any:
        return self._forward(self, *inputs)


def of_model(model: nn.Module, *inputs: Tensor) -> Tensor:
    return model(*inputs).square().sum()


def writes_into_parameter(m: Part, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.layer.weight.mul_(x.mean())
    return m.layer(x)


def writes_into_view_of_parameter(m: Part, x: Tensor) -> Tensor:
    row = m.layer.weight[0]
    with torch.no_grad():
        row.add_(x.mean())
    return m.layer(x)


def writes_into_buffer(m: Part, x: Tensor) -> Tensor:
    m.seen += x.mean()
    return m.layer(x)


def writes_rows_into_buffer(m: Part, x: Tensor) -> Tensor:
    m.seen[0] = x.mean()
    return m.layer(x)


class Cube(torch.autograd.Function):
    """Without a rule for vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0] * 3 * ctx.saved_tensors[0] ** 2


def scripted_model() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(torch.jit.script(nn.Linear(3, 3).double()), nn.Linear(3, 2).double())


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "branch on a value": (
        lambda: Part(lambda m, x: m.layer(x) if x.sum() > 0 else m.layer(-x)),
        r"the model \(Part\).*torch\.where",
    ),
    "item": (lambda: Part(lambda m, x: m.layer(x) * x.sum().item()), "as a Python number"),
    "tolist": (lambda: Part(lambda m, x: m.layer(x) * sum(x[0].tolist())), "as a Python number|cannot be vectorised"),
    "numpy": (lambda: Part(lambda m, x: m.layer(x) * float(x.detach().numpy().sum())), "cannot be vectorised|Python"),
    "nonzero": (lambda: Part(lambda m, x: m.layer(x) * x.nonzero().shape[0]), "shape depends on the values"),
    "unique": (lambda: Part(lambda m, x: m.layer(x) * x.unique().shape[0]), "cannot be vectorised|shape depends"),
    "boolean selection": (lambda: Part(lambda m, x: m.layer(x)[x[:, :2] > 0]), "shape depends on the values"),
    "batch norm": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double(),
        r"1 \(BatchNorm1d\).*convert_batch_norm",
    ),
    "buffer": (lambda: Part(writes_into_buffer, seen=torch.zeros((), dtype=torch.float64)), "a buffer must not depend"),
    "rows of a buffer": (
        lambda: Part(writes_rows_into_buffer, seen=torch.zeros(2, dtype=torch.float64)),
        "a buffer must not depend",
    ),
    "parameter": (lambda: Part(writes_into_parameter), "into a parameter"),
    "view of a parameter": (lambda: Part(writes_into_view_of_parameter), "into a parameter"),
    "autograd function": (lambda: Part(lambda m, x: Cube.apply(m.layer(x))), r"autograd\.Function"),
    "script": (scripted_model, r"TorchScript|outside the recorded"),
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


BAD_BATCHES: dict[str, tuple[tuple[Any, ...], str]] = {
    "no tensor": ((), "no tensor"),
    "only numbers": ((3, "a"), "no tensor"),
    "unequal first axes": ((torch.zeros(3, 3), torch.zeros(2)), r"\(3, 3\), \(2,\)"),
    "a scalar": ((torch.zeros(3, 3), torch.zeros(())), r"one row per example"),
    "array": ((torch.zeros(3, 3), np.zeros(3)), "tensor with one row per example"),
    "array in a dictionary": ((torch.zeros(3, 3), {"y": np.zeros(3)}), "tensor with one row per example"),
    "list of numbers": ((torch.zeros(3, 3), [0, 1, 1]), "tensor with one row per example"),
    "numbers by name": ((torch.zeros(3, 3), {"lengths": (1, 2, 3)}), "tensor with one row per example"),
}


@pytest.mark.parametrize("name", BAD_BATCHES)
def test_arguments_that_all_examples_would_see_are_refused(name: str) -> None:
    batch, words = BAD_BATCHES[name]
    with pytest.raises(PrivacyError, match=words):
        accumulated(nn.Linear(3, 2), lambda m, x, *others: m(x).sum(), *batch)


@pytest.mark.parametrize(
    "loss",
    [
        lambda m, x: m(x),
        lambda m, x: None,
        lambda m, x: 1.0,
        lambda m, x: (m(x).sum(),),
        lambda m, x: m(torch.cat([x, x])).sum(1),
    ],
    ids=["vector", "none", "number", "tuple", "two losses"],
)
def test_a_loss_is_one_value(loss: Callable[..., Any]) -> None:
    with pytest.raises(PrivacyError, match="a tensor with one value"):
        accumulated(net(), loss, rows()[0])


def test_a_loss_that_no_parameter_reaches_is_refused() -> None:
    with pytest.raises(PrivacyError):
        accumulated(net(), lambda m, x: x.sum(), rows()[0])


def test_an_error_of_the_loss_itself_is_not_explained_away() -> None:
    with pytest.raises(KeyError):
        accumulated(net(), lambda m, x: {}[x.shape], rows()[0])
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        accumulated(net(), lambda m, x: m(x[:, :2]).sum(), rows()[0])
