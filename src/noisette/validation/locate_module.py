"""Search for the module that mixes examples, so that an error message can name it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from noisette.validation.deterministic import DisableRandomness
from noisette.validation.probe_inputs import EXAMPLES, Call, by_example, differ, single_example


def locate_mixing_module(model: nn.Module, batch: Call) -> str:
    """An error message that names the module that mixes examples; an empty string if no output shows it.

    It is the first module, in the order in which calls end, whose output for an example differs between the batch and
    the example alone although its inputs do not. If its inputs differ too, the coupling is in an earlier module.
    """
    in_batch = _record_calls(model, batch, EXAMPLES)
    alone = [_record_calls(model, single_example(batch, i), 1) for i in range(EXAMPLES)]
    for call, *single_calls in zip(in_batch, *alone, strict=False):
        pairs = [(call.of(i), single.of(0)) for i, single in enumerate(single_calls)]
        if any(differ(one.outputs, other.outputs) and not differ(one.inputs, other.inputs) for one, other in pairs):
            return (
                f"{call.name or 'the model'} ({call.kind}) changes the output of an example when the other examples "
                "change. Every operation must treat each example separately; replace batch norm by GroupNorm."
            )
    return ""


@dataclass(frozen=True)
class _ModuleCall:
    """Inputs and outputs of one call of a module, each tensor with the examples on its first axis."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def of(self, i: int) -> _ModuleCall:
        """Inputs and outputs of one example."""
        return _ModuleCall(self.name, self.kind, tuple(t[i] for t in self.inputs), tuple(t[i] for t in self.outputs))


def _record_calls(model: nn.Module, batch: Call, b: int) -> list[_ModuleCall]:
    """The calls of all modules for a batch of b examples, in the order in which they end."""
    calls: list[_ModuleCall] = []

    def copies(values: object) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in by_example(values, b))

    def record(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append(_ModuleCall(name, type(module).__name__, copies((args, kwargs)), copies(output)))

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue  # takes no hooks
            hooks.enter_context(module.register_forward_hook(partial(record, name), with_kwargs=True))
        with torch.no_grad(), DisableRandomness():
            model(*batch.args, **batch.kwargs)
    return calls
