"""Which module of a model that couples its examples does it, so that a refusal can name it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from noisette.validation.deterministic import DisableRandomness
from noisette.validation.probe_inputs import EXAMPLES, Call, by_example, differ, row


def locate_mixing_module(model: nn.Module, batch: Call) -> str:
    """What to say of the innermost module, first in order, whose output for an example changes when the others leave.

    Its inputs do not: a module whose inputs change as well got that from elsewhere. Empty where no output shows it.
    """
    together = _answers(model, batch, EXAMPLES)
    alone = [_answers(model, row(batch, i), 1) for i in range(EXAMPLES)]
    for whole, *singles in zip(together, *alone, strict=False):
        pairs = [(whole.of(i), single.of(0)) for i, single in enumerate(singles)]
        if any(differ(one.outputs, other.outputs) and not differ(one.inputs, other.inputs) for one, other in pairs):
            return (
                f"{whole.name or 'the model'} ({whole.kind}) gives an example another output when the other examples "
                "change. Every operation must look at one example at a time; for batch norm use GroupNorm."
            )
    return ""


@dataclass(frozen=True)
class _Answer:
    """What a module was given and what it answered, each tensor with the examples on its first axis."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def of(self, i: int) -> _Answer:
        """Of one example."""
        return _Answer(self.name, self.kind, tuple(t[i] for t in self.inputs), tuple(t[i] for t in self.outputs))


def _answers(model: nn.Module, batch: Call, b: int) -> list[_Answer]:
    """What the modules answer for a batch of b examples, in the order of their answers."""
    seen: list[_Answer] = []

    def kept(values: object) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in by_example(values, b))

    def hook(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        seen.append(_Answer(name, type(module).__name__, kept((args, kwargs)), kept(output)))

    handles = [
        module.register_forward_hook(partial(hook, name), with_kwargs=True) for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad(), DisableRandomness():
            model(*batch.args, **batch.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return seen
