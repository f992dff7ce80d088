"""What the process that compiles a graph is asked for, as JSON: the operations, and the shapes of the inputs.

No value of any tensor is in it.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from noisette.capture.graph import CaptureError


@dataclass(frozen=True)
class Request:
    """A graph, in JSON.

    Args:
        text: the operations, the inputs' shapes, and settings of torch that the compiled code depends on.
    """

    text: str

    @classmethod
    def of(cls, module: GraphModule, inputs: Sequence[Tensor]) -> Request:
        """The request to compile this graph for inputs of these shapes.

        Raises:
            CaptureError: an operation or a constant of the graph cannot be written down.
        """
        nodes = [_written_node(node) for node in module.graph.nodes]
        shapes = [[list(t.shape), list(t.stride()), str(t.dtype), str(t.device)] for t in inputs]
        settings = {
            "threads": torch.get_num_threads(),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        return cls(json.dumps({"nodes": nodes, "inputs": shapes, **settings}))

    def read(self) -> tuple[GraphModule, list[Tensor]]:
        """The graph, and tensors of the shapes of its inputs, whose values are never read.

        Threads and deterministic algorithms are set as they were where the request was made.
        """
        read: Mapping[str, Any] = json.loads(self.text)
        torch.set_num_threads(read["threads"])
        torch.use_deterministic_algorithms(read["deterministic"])
        graph, known = Graph(), dict[str, Node]()
        for name, op, target, args, kwargs in read["nodes"]:
            given = _read(args, known), _read(kwargs, known)
            if op == "placeholder":
                known[name] = graph.placeholder(name)
            elif op == "output":
                graph.output(*given[0])
            else:
                known[name] = graph.call_function(_operation(target), tuple(given[0]), given[1])
        inputs = [
            torch.empty_strided(size, stride, dtype=_of_torch(dtype), device=device)
            for size, stride, dtype, device in read["inputs"]
        ]
        return GraphModule(torch.nn.Module(), graph), inputs


def unfinished_file(file: Path, process: int) -> Path:
    """Where the process that compiles writes to, before the file is there as a whole."""
    return file.with_suffix(f".{process}")


def _written_node(node: Node) -> list[Any]:
    target = str(node.target) if node.op != "call_function" else _name(node.target)
    return [node.name, node.op, target, _written(list(node.args)), _written(dict(node.kwargs))]


def _name(operation: Any) -> str:
    if operation is operator.getitem:
        return "getitem"
    if isinstance(operation, torch._ops.OpOverload):
        return f"{operation.namespace}.{operation._opname}.{operation._overloadname}"
    raise CaptureError(f"the compiler cannot be given {operation}")


def _operation(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    namespace, operation, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), operation), overload)


_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def _written(value: Any) -> Any:
    """An argument in JSON: plain values as they are, all others as an object with one entry."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return {"float": value.hex() if value == value and abs(value) != float("inf") else str(value)}
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, _OF_TORCH):
        return {"torch": str(value)}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, slice):
        return {"slice": [_written(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, list | tuple):
        return [_written(part) for part in value]
    if isinstance(value, dict):
        return {"dict": {name: _written(part) for name, part in value.items()}}
    raise CaptureError(f"the compiler cannot be given a {type(value).__name__}")


def _read(value: Any, known: Mapping[str, Node]) -> Any:
    """The inverse of :func:`_written`."""
    if isinstance(value, list):
        return [_read(part, known) for part in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "node":
        return known[content]
    if kind == "float":
        return float(content) if content in ("nan", "inf", "-inf") else float.fromhex(content)
    if kind == "torch":
        return _of_torch(content)
    if kind == "device":
        return torch.device(content)
    if kind == "slice":
        return slice(*(_read(part, known) for part in content))
    return {name: _read(part, known) for name, part in content.items()}


def _of_torch(name: str) -> Any:
    """A type, a layout or a memory format by its name, such as ``torch.float32``."""
    return getattr(torch, name.removeprefix("torch."))
