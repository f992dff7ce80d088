"""The batch norm of the paper's algorithm 1, which normalises private and public examples together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from noisette.nn.batch_norm import ChannelNorm


class JointBatch:
    """Hooks around the calls of a model that add the public examples to each private one.

    An input of shape (b, ...) becomes (b, 1 + public examples, ...), flattened; what the model returns for the public
    examples is dropped.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs = tuple(inputs)
        self._examples: list[int] = []  # private examples of the calls in progress

    def __deepcopy__(self, memo: dict[int, object]) -> JointBatch:
        copied = memo[id(self)] = type(self)(self._inputs)
        return copied

    @classmethod
    def attach(cls, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Add the public batch to every later call of this model."""
        batch = cls(inputs)
        model.register_forward_pre_hook(batch.before_call, with_kwargs=True)
        model.register_forward_hook(batch.after_call)
        for norm in model.modules():
            if isinstance(norm, ExactPerExampleBatchNorm):
                norm.group = 1 + len(batch._inputs[0])

    def before_call(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with the public examples added; ValueError if named or of another number."""
        if kwargs or len(args) != len(self._inputs):
            raise ValueError(
                f"the model was called with {len(args)} positional and {len(kwargs)} named inputs; its public batch "
                f"has {len(self._inputs)} positional ones"
            )
        self._examples.append(len(args[0]))
        return tuple(self._joined(model, x, public.to(x)) for x, public in zip(args, self._inputs, strict=True)), {}

    def after_call(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The output for the private examples."""
        count = self._examples.pop()
        return tree_map(lambda leaf: self._private(model, leaf, count) if isinstance(leaf, Tensor) else leaf, output)

    def _joined(self, model: nn.Module, x: Tensor, public: Tensor) -> Tensor:
        """Each private example, followed by the public ones."""
        beside = public.unsqueeze(0).expand(len(x), *public.shape)
        return torch.cat([x.unsqueeze(1), beside], 1).flatten(0, 1)

    def _private(self, model: nn.Module, rows: Tensor, count: int) -> Tensor:
        return rows.unflatten(0, (count, -1))[:, 0]


class ExactPerExampleBatchNorm(ChannelNorm):
    """Batch norm over one private example and the public batch, in a pass of their own for each private example.

    The whole network processes 1 + M examples for each private one, in training and in evaluation, which multiplies its
    time and memory. :class:`noisette.nn.PerExampleBatchNorm` is the cheap approximation. Buffers stay as they are.

    Guarantee: the output for an example depends on that example, the weights and the public batch alone.
    Source: Davody et al. 2020, the test phase of algorithm 1.
    """

    needs_public = True
    joint_batch: ClassVar[type[JointBatch]] = JointBatch
    group = 0  # examples that are normalised together: one and the public ones

    @classmethod
    def use_public(cls, model: nn.Module, inputs: Sequence[Tensor], every: int) -> None:
        """Add the public batch to every later call of this model."""
        cls.joint_batch.attach(model, inputs)

    def forward(self, input: Tensor) -> Tensor:
        if not self.group:
            raise RuntimeError(f"this {type(self).__name__} has no public batch; use noisette.nn.convert_batch_norm")
        groups = input.unflatten(0, (-1, self.group))
        axes = [axis for axis in range(groups.dim()) if axis not in (0, 2)]
        mean = groups.mean(axes, keepdim=True)
        variance = groups.var(axes, correction=0, keepdim=True)
        normalised = ((groups - mean) * (variance + self.eps).rsqrt()).flatten(0, 1)
        if self.weight is None or self.bias is None:
            return normalised
        places = [1] * (input.dim() - 2)
        return normalised * self.weight.view(-1, *places) + self.bias.view(-1, *places)


class MixedBatch(JointBatch):
    """In training mode the public examples join all private ones at once, in evaluation mode each one separately."""

    def _joined(self, model: nn.Module, x: Tensor, public: Tensor) -> Tensor:
        return torch.cat([x, public]) if model.training else super()._joined(model, x, public)

    def _private(self, model: nn.Module, rows: Tensor, count: int) -> Tensor:
        return rows[:count] if model.training else super()._private(model, rows, count)


class MixtureBatchNorm(ExactPerExampleBatchNorm):
    """Batch norm over all private examples of a batch and the public ones together, as published.

    One record moves the statistics, and so the gradients of all other records in its batch: clipping each to C bounds
    what L of them change together by (2 L - 1) C, not by C. :func:`noisette.privatize` refuses it. In evaluation mode
    it is :class:`ExactPerExampleBatchNorm`.

    Guarantee: none.
    Source: Davody et al. 2020, algorithm 1.
    """

    joint_batch: ClassVar[type[JointBatch]] = MixedBatch

    @property
    def mixes_examples(self) -> str:
        """Why a private run refuses this module, "" in evaluation mode."""
        return "mixes examples in its statistics, as published: use PublicBatchNorm instead" if self.training else ""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return nn.functional.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)
