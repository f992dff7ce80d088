"""A function of tensors as one graph of ATen operations, without Python between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

Function = Callable[..., Sequence[Tensor]]

# What torch says where code asks for the value of a tensor, and what a user is told.
_VALUE_OP = "aten._local_scalar_dense"
_ASKS_FOR_A_VALUE = "the engine or the loss asks for the value of a tensor, as a branch on it, .item() and float() do"
_LONGEST = 200  # characters of a reason


class CaptureError(Exception):
    """A function cannot be captured; the message says why in one line."""


@dataclass(frozen=True)
class Graph:
    """A traced function.

    Args:
        module: called with the constants, then the inputs of the function; a list of tensors.
        constants: the tensors that the function reached otherwise than as inputs, such as parameters.
    """

    module: GraphModule
    constants: tuple[Tensor, ...]

    @property
    def operations(self) -> int:
        """The number of operations."""
        return sum(node.op == "call_function" for node in self.module.graph.nodes)

    def __call__(self, constants: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
        """The function's outputs, with these tensors in the place of the constants."""
        with as_recorded(inputs[-1].device):
            return self.module(*constants, *inputs)


@contextmanager
def as_recorded(device: torch.device) -> Iterator[None]:
    """Within it operations run as they stand in a graph: without autograd, and in the types that they have there."""
    lower = torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()
    with torch.no_grad(), lower:
        yield


def trace(function: Function, inputs: Sequence[Tensor]) -> Graph:
    """The graph of a function, recorded in one call with these inputs.

    Whatever the function decides by Python code is decided as in this call.

    Raises:
        CaptureError: an operation cannot be recorded, or code asks for the value of a tensor.
    """
    try:
        with _no_kept_casts():
            module = make_fx(function, _error_on_data_dependent_ops=True)(*inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise CaptureError(_ASKS_FOR_A_VALUE if _VALUE_OP in str(error) else reason_of(error)) from error
    constants = _lift_constants(module)
    module.graph.eliminate_dead_code()
    module.recompile()
    return Graph(module, constants)


@contextmanager
def _no_kept_casts() -> Iterator[None]:
    """Within it autocast keeps no weights that it has cast: in a graph they would be constants, and soon outdated."""
    keeps = torch.is_autocast_cache_enabled()
    torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(keeps)
        torch.clear_autocast_cache()


def reason_of(error: BaseException) -> str:
    """The first line of an error, short."""
    lines = str(error).strip().splitlines() or [""]
    first = f"{type(error).__name__}: {lines[0]}"
    return first if len(first) <= _LONGEST else first[: _LONGEST - 2] + " …"


def _lift_constants(module: GraphModule) -> tuple[Tensor, ...]:
    """Make each tensor that the graph holds an input, in front of its other inputs."""
    graph = module.graph
    first = next(iter(graph.nodes))
    lifted: dict[int, tuple[Tensor, Node]] = {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        tensor = getattr(module, str(node.target))
        if not isinstance(tensor, Tensor):
            raise CaptureError(f"the graph holds a {type(tensor).__name__}")
        if id(tensor) not in lifted:
            with graph.inserting_before(first):
                lifted[id(tensor)] = tensor, graph.placeholder(f"constant_{len(lifted)}")
        node.replace_all_uses_with(lifted[id(tensor)][1])
        graph.erase_node(node)
    for name in {*module._parameters, *module._buffers}:
        delattr(module, name)
    return tuple(tensor for tensor, _ in lifted.values())
