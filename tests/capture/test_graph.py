"""A traced function: constants are inputs, and no value of a batch can stay in it."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from noisette.capture.graph import CaptureError, trace, why_not_compiled
from noisette.core.loss import OutsideTensors


def compiles(test: Any) -> Any:
    skips = pytest.mark.skipif(why_not_compiled() is not None, reason="no compiler")
    return pytest.mark.slow(skips(pytest.mark.filterwarnings("ignore::DeprecationWarning")(test)))  # of torch itself


def test_constants_are_given_anew_in_each_call() -> None:
    weight, x, y = torch.randn(3), torch.randn(4, 3), torch.randn(4, 3)
    graph = trace(lambda x: [x * weight + weight.sum()], [x])
    [constant] = graph.constants
    assert constant is weight
    weight.mul_(2)
    torch.testing.assert_close(graph([y])[0], y * weight + weight.sum())


def test_buffers_are_looked_up_by_name() -> None:
    model, scale = nn.Linear(3, 2), torch.ones(2)
    graph = trace(lambda x: [model(x) * scale], [torch.randn(4, 3)], {"scale": scale})
    x, other = torch.randn(4, 3), torch.randn(2)
    torch.testing.assert_close(graph([x], {"scale": other})[0], model(x) * other)


READERS: dict[str, Callable[[Tensor], object]] = {
    "numpy": lambda x: x.numpy(),
    "an array": np.asarray,
    "a list": lambda x: x.tolist(),
    "item": lambda x: x.sum().item(),
    "a branch": lambda x: 1.0 if x.sum() > 0 else 2.0,
    "from dlpack": torch.from_dlpack,
    "storage": lambda x: list(x.untyped_storage()),
    "a mask's length": lambda x: len(x[x > 0]),
    "a length": lambda x: len(x.nonzero()),
    "a parameter": lambda x: float(nn.Parameter(x.new_ones(()))),
}


@pytest.mark.parametrize("name", READERS)
def test_code_that_reads_values_of_an_input_is_refused(name: str) -> None:
    def function(x: Tensor) -> list[Tensor]:
        READERS[name](x.detach())
        return [x * 2]

    with pytest.raises(CaptureError, match=r"^[^\n]{1,200}$"):
        trace(function, [torch.randn(4)])


def test_no_input_of_the_trace_is_held() -> None:
    weight, x = torch.randn(3), torch.full((4, 3), 1234.5)
    graph = trace(lambda x: [(x * weight).relu().sum(0), x.square().sum(1)], [x])
    dead = weakref.ref(x)
    del x
    gc.collect()
    assert dead() is None
    held = [found for found in gc.get_objects() if issubclass(type(found), Tensor)]
    values = [t for t in held if t.device.type == "cpu" and t.shape == (4, 3) and type(t) is Tensor]
    assert not any(bool((t == 1234.5).any()) for t in values)
    assert graph.operations == 5


def test_views_of_one_tensor_with_one_shape_are_one_operation() -> None:
    x = torch.randn(4, 3)
    assert trace(lambda x: [x.unsqueeze(1).squeeze(1).t().t().detach().view(4, 3).exp()], [x]).operations == 1
    assert trace(lambda x: [x.view(2, 6).exp() + x.unsqueeze(0).view(2, 6)], [x]).operations == 3


def _written_through_a_view(x: Tensor) -> list[Tensor]:
    y = x.clone()
    before = y.view(-1) * 1
    y.t()[0].add_(1)
    return [before, y.view(-1), y.t() + y.view(4, 3).t()]


def _reshaped_in_place(x: Tensor) -> list[Tensor]:
    y = x.clone()
    first = y.view(4, 1, 3)
    first.squeeze_(1)
    return [first * 2, y.view(4, 1, 3).transpose(0, 1) + 1]


def _read_with_other_strides(x: Tensor) -> list[Tensor]:
    square = x[:, :3].clone()[:3]
    return [square.t() @ square, square.t().t(), square.expand(2, 3, 3).sum(0), square.t().contiguous().view(-1)]


@pytest.mark.parametrize("function", [_written_through_a_view, _reshaped_in_place, _read_with_other_strides])
def test_views_are_read_as_in_the_function(function: Callable[[Tensor], list[Tensor]]) -> None:
    graph = trace(function, [torch.randn(4, 3)])
    x = torch.randn(4, 3)
    for found, expected in zip(graph([x]), function(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_random_numbers_are_drawn_anew() -> None:
    graph = trace(lambda x: [x + torch.rand(4)], [torch.zeros(4)])
    x = torch.zeros(4)
    assert not torch.equal(graph([x])[0], graph([x])[0])


@compiles
def test_a_compiled_graph_is_the_graph() -> None:
    """Also the numbers that it draws, and buffers that are others by then."""
    model, scale = nn.Linear(3, 2), torch.ones(2)
    inputs = [torch.randn(4, 3)]
    graph = trace(lambda x: [model(x + torch.rand(4, 3)) * scale], inputs, {"scale": scale})
    compiled = graph.compiled(inputs, {"scale": scale})
    assert compiled.module._artifacts is None  # bytes to be saved, which would stay in memory
    for _ in range(3):
        torch.nn.init.normal_(model.weight)
        x, other = torch.randn(4, 3), torch.randn(2)
        torch.manual_seed(1)
        expected = graph([x], {"scale": other})[0]
        torch.manual_seed(1)
        torch.testing.assert_close(compiled([x], {"scale": other})[0], expected)


@compiles
def test_a_tensor_that_the_compiler_lays_out_otherwise_can_be_viewed() -> None:
    """As keys that a language model joins to those of an empty cache: compiled, nothing is left to join."""
    x = torch.randn(4, 7, 2, 3)
    graph = trace(lambda x: [torch.cat([x.new_empty(0), x.transpose(1, 2)], 2).mul(2).view(8, 7, 3)], [x])
    torch.testing.assert_close(graph.compiled([x])([x]), graph([x]))


@compiles
def test_a_compiled_graph_is_entered_while_a_run_watches_collections() -> None:
    """Once a frame that torch cannot compile came between, the graph counted as not compiled, and the run ended."""
    compiled = trace(lambda x: [x.sin()], [torch.ones(3)]).compiled([torch.ones(3)])
    outside = OutsideTensors()
    outside.before_first_batch()
    before = gc.get_threshold()
    gc.set_threshold(5)  # a collection begins in most calls
    try:
        for _ in range(50):
            kept = [[k] for k in range(3)]
            assert torch.equal(compiled([torch.ones(3)])[0], torch.ones(3).sin())
            assert kept
    finally:
        gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("variable", "said"), [("NOISETTE_COMPILE", "NOISETTE_COMPILE=0 is set"), ("PATH", "there is no C.. compiler")]
)
def test_why_nothing_is_compiled_is_told_in_words(variable: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("NOISETTE_COMPILE", raising=False)
    monkeypatch.setenv(variable, "0")
    inputs = [torch.randn(4)]
    with pytest.raises(CaptureError, match=said):
        trace(lambda x: [x * 2], inputs).compiled(inputs)
