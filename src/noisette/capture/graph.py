"""A function of tensors as one graph of ATen operations, without Python between them, and that graph compiled."""

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor
from torch._guards import TracingContext, tracing
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from noisette.core.vmap import NotVectorizedError

Function = Callable[..., Sequence[Tensor]]

_LOG = logging.getLogger("noisette.capture")
# Views of all of a tensor.
_RESHAPES = {torch.ops.aten.squeeze.dim, torch.ops.aten.squeeze.dims, torch.ops.aten.transpose.int}
for _name in ("alias", "detach", "expand", "permute", "t", "unsqueeze", "view"):
    _RESHAPES.add(getattr(torch.ops.aten, _name).default)
_NORM = torch.ops.aten.linalg_vector_norm.default
# Functions of torch for operations of ``torch.ops``, through which a small one takes half as long again.
_DIRECT: dict[Any, Callable[..., Any]] = {
    _NORM: torch.linalg.vector_norm,
    torch.ops.aten.view.default: torch.reshape,  # compiled, an operation may lay out its result otherwise
}
_ALIKE = "add addmm bmm cat div exp mm mul neg permute pow relu select stack sub sum t tanh transpose unbind where"
for _name in (*_ALIKE.split(), "unsqueeze"):  # with every overload
    _operation = getattr(torch.ops.aten, _name)
    _DIRECT |= {getattr(_operation, overload): getattr(torch, _name) for overload in _operation.overloads()}
_LONGEST = 200  # characters of a reason
# Random numbers are drawn by the same generator, in the same order, as without compiling. Inductor's choice of layouts
# would copy every factor of a convolution to channels-last and back.
_COMPILER = {"config_patches": {"fallback_random": True, "layout_optimization": False}}


class CaptureError(Exception):
    """A function cannot be captured; the message says why in one line."""


@dataclass(frozen=True)
class Graph:
    """A traced function: ``module`` takes the constants, then the inputs of the function, and gives a list of tensors.

    Constants are tensors that the function reached otherwise than as inputs, and names of buffers.
    """

    module: Any
    constants: tuple[Tensor | str, ...]
    operations: int

    def __call__(self, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor] = MappingProxyType({})) -> list[Tensor]:
        device = inputs[-1].device.type
        # As in the graph: without autograd, and in the types that operations have there.
        lower = torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
        with torch.no_grad(), lower:
            return self.module(*self._arguments(inputs, buffers))

    def _arguments(self, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor]) -> list[Any]:
        return [*(buffers[each] if isinstance(each, str) else each for each in self.constants), *inputs]

    def compiled(self, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor] = MappingProxyType({})) -> Self:
        """The same, compiled by inductor in a call with these tensors; torch keeps the result on disk."""
        if (problem := why_not_compiled()) is not None:
            raise CaptureError(problem)
        from torch._inductor import standalone_compile  # its result has none of Dynamo's checks in each call

        _LOG.info("compiling a step of %d operations", self.operations)
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # of torch's own code
                given = self._arguments(inputs, buffers)
                module = standalone_compile(self.module, given, dynamic_shapes="from_example_inputs", options=_COMPILER)
                module._artifacts = None  # bytes to be saved, which nobody does
                found = replace(self, module=module)
                found(inputs, buffers)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise CaptureError(f"the compiler failed: {reason_of(error)}") from error
        return found


def why_not_compiled() -> str | None:
    """Why nothing can be compiled for a processor on this machine; ``None`` if it can."""
    if os.environ.get("NOISETTE_COMPILE") == "0":
        return "NOISETTE_COMPILE=0 is set"
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        return "there is no C++ compiler on this machine (g++ or clang++)"
    return None


def trace(function: Function, inputs: Sequence[Tensor], buffers: Mapping[str, Tensor] = MappingProxyType({})) -> Graph:
    """The graph of a function that gives a list of tensors, recorded in one call with these inputs.

    Whatever the function decides by Python code is decided as in this call. ``buffers`` are those that it uses.
    """
    # One mode for the shapes that torch notes: one for each operation would take most of the time of a trace.
    shapes = TracingContext(FakeTensorMode(allow_fallback_kernels=True))
    try:
        with warnings.catch_warnings(), _NoValues(), _no_kept_casts(), tracing(shapes):
            warnings.simplefilter("ignore")  # of torch's own code; the function has been called before
            module = make_fx(function, _error_on_data_dependent_ops=True)(*inputs)
    except (torch.OutOfMemoryError, CaptureError):
        raise
    except Exception as error:
        raise CaptureError(reason_of(error)) from error
    _check_shapes(module)
    constants = _lift_constants(module)
    _merge_equal(module.graph)
    module.graph.eliminate_dead_code()
    for node in module.graph.nodes:
        node.target = _DIRECT.get(node.target, node.target)
    module.recompile()
    operations = sum(node.op == "call_function" for node in module.graph.nodes)
    names = {id(tensor): name for name, tensor in buffers.items()}
    return Graph(module, tuple([names.get(id(tensor), tensor) for tensor in constants]), operations)


_GIVE_VALUES = {Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, Tensor.storage, Tensor.__reduce_ex__}
_ASK = {Tensor.item, Tensor.__int__, Tensor.__float__, Tensor.__bool__, Tensor.__index__}  # a parameter would answer


class _NoValues(TorchFunctionMode):
    """Within it no code gets at the values of tensors past the trace: they would stay in the graph as constants."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _GIVE_VALUES or (func in _ASK and isinstance(args[0], torch.nn.Parameter)):
            raise CaptureError(f"code reads the values of a tensor by {func.__name__}")
        return func(*args, **(kwargs or {}))


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
    """The first line of an error, short; of a loss that a graph cannot follow, what it does."""
    said = error.cause if isinstance(error, NotVectorizedError) else str(error).strip()
    lines = said.splitlines() or [""]
    first = lines[0] if isinstance(error, CaptureError | NotVectorizedError) else f"{type(error).__name__}: {lines[0]}"
    return first if len(first) <= _LONGEST else first[: _LONGEST - 2] + " …"


def _check_shapes(module: GraphModule) -> None:
    """Check that no shape depends on values: Python code that reads one would leave it in the graph."""
    for node in module.graph.nodes:
        is_dynamic = torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ())
        if node.target is torch.ops.aten.index.Tensor:
            values = [index.meta.get("val") for index in node.args[1] if index is not None]
            is_dynamic = any(isinstance(v, Tensor) and v.dtype in (torch.bool, torch.uint8) for v in values)
        if is_dynamic:
            raise CaptureError(f"the shape of what {node.target} gives depends on values")


def _lift_constants(module: GraphModule) -> tuple[Tensor, ...]:
    """Make each tensor that the graph holds an input, in front of its other inputs."""
    graph = module.graph
    first = next(iter(graph.nodes))
    lifted: dict[Tensor, Node] = {}  # tensors are hashed by identity
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        tensor = getattr(module, str(node.target))
        if not isinstance(tensor, Tensor):
            raise CaptureError(f"the graph holds a {type(tensor).__name__}")
        if tensor not in lifted:
            with graph.inserting_before(first):
                lifted[tensor] = graph.placeholder(f"constant_{len(lifted)}")
                lifted[tensor].meta["val"] = tensor
        node.replace_all_uses_with(lifted[tensor])
        graph.erase_node(node)
    for name in {*module._parameters, *module._buffers}:
        delattr(module, name)
    return tuple(lifted)


def _merge_equal(graph: torch.fx.Graph) -> None:
    """Take one node for all views of a tensor with the same shape and strides, and one for all equal norms.

    A third of operations are such views. Many only leave autograd or ``vmap``: of ``y = x.unsqueeze(1)`` and
    ``z = y.squeeze(1)``, z is x. A weight and its bias both take norms of the gradient at one output.
    """
    viewed: dict[Node, Node] = {}  # the tensor that a node is a view of, or the first with its values, or itself
    first: dict[tuple[Node, torch.Size, tuple[int, ...]], Node] = {}
    norms: dict[Any, Node] = {}
    writes = 0
    for node in graph.nodes:
        writes += isinstance(node.target, OpOverload) and node.target._schema.is_mutable
        viewed[node] = node
        if node.target in _RESHAPES:
            viewed[node] = viewed[node.args[0]]
        elif node.target is _NORM and all(user.target is torch.ops.aten.stack.default for user in node.users):
            viewed[node] = norms.setdefault((writes, node.args, node.kwargs), node)  # nobody writes into these
        tensor = node.meta.get("val")
        is_reshaped = any(torch.Tag.inplace_view in getattr(user.target, "tags", ()) for user in node.users)
        if isinstance(tensor, Tensor) and not is_reshaped:
            other = first.setdefault((viewed[node], tensor.shape, tensor.stride()), node)
            if other is not node:
                node.replace_all_uses_with(other)
                graph.erase_node(node)
