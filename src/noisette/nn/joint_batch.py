"""Private and public examples in one forward pass, as the paper's algorithm has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from noisette.nn.channel_norm import ChannelNorm

F = nn.functional


class JointBatch:
    """Hooks around the calls of a model: its norms see the public batch beside the private examples.

    The public batch joins each example on its own (a group for every example), or all of them at once (in training mode
    of a :class:`MixtureBatchNorm`). What the model returns for public examples is cut off.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        self._inputs = tuple(inputs)
        self._examples: list[int] = []  # of the calls under way

    def __deepcopy__(self, memo: dict[int, object]) -> JointBatch:
        copied = memo[id(self)] = JointBatch(self._inputs)
        return copied

    @classmethod
    def attach(cls, model: nn.Module, inputs: Sequence[Tensor]) -> None:
        """Let the public batch join every call of this model from now on."""
        batch = cls(inputs)
        model.register_forward_pre_hook(batch.join, with_kwargs=True)
        model.register_forward_hook(batch.part)
        for norm in _norms_of(model):
            norm.group = 1 + len(batch._inputs[0])

    def join(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call with the public examples added."""
        if kwargs or len(args) != len(self._inputs):
            raise ValueError(
                f"the model was called with {len(args)} positional and {len(kwargs)} named inputs; its public batch "
                f"has {len(self._inputs)} positional ones"
            )
        self._examples.append(len(args[0]))
        join = _after if _is_mixed(model) else _around
        return tuple(join(x, public.to(x)) for x, public in zip(args, self._inputs, strict=True)), {}

    def part(self, model: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        """The output for the private examples."""
        count = self._examples.pop()
        mixed = _is_mixed(model)

        def private(rows: Tensor) -> Tensor:
            return rows[:count] if mixed else rows.unflatten(0, (count, -1))[:, 0]

        return tree_map(lambda leaf: private(leaf) if isinstance(leaf, Tensor) else leaf, output)


def _after(x: Tensor, public: Tensor) -> Tensor:
    """All private examples, then the public ones."""
    return torch.cat([x, public])


def _around(x: Tensor, public: Tensor) -> Tensor:
    """Each private example, followed by the public ones."""
    beside = public.unsqueeze(0).expand(len(x), *public.shape)
    return torch.cat([x.unsqueeze(1), beside], 1).flatten(0, 1)


def _norms_of(model: nn.Module) -> list[ExactPerExampleBatchNorm]:
    return [module for module in model.modules() if isinstance(module, ExactPerExampleBatchNorm)]


def _is_mixed(model: nn.Module) -> bool:
    return any(isinstance(norm, MixtureBatchNorm) and norm.training for norm in _norms_of(model))


class ExactPerExampleBatchNorm(ChannelNorm):
    """Batch norm over one private example and the public batch, in a pass of their own for each private example.

    All of the network works on 1 + M examples for each private one, in training and in evaluation, so it costs as many
    times the work and the memory. :class:`PerExampleBatchNorm` is the cheap approximation. Buffers are left alone.

    Guarantee: as for :class:`PublicBatchNorm`.
    Source: Davody et al. 2020, the test phase of algorithm 1.
    """

    group = 0  # examples that are normalised together: one and the public ones

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


class MixtureBatchNorm(ExactPerExampleBatchNorm):
    """Batch norm over all private examples of a batch and the public ones together: the published algorithm as printed.

    For reproduction only. One record moves the statistics, and so the gradients of all others in its batch: clipping
    each to C bounds what L of them change together by (2 L - 1) C, not by C. :func:`noisette.privatize` refuses it; it
    trains, without any claim, through :func:`noisette.run.non_private.non_private`. In evaluation mode it is
    :class:`ExactPerExampleBatchNorm`.

    Guarantee: none.
    Source: Davody et al. 2020, algorithm 1.
    """

    @property
    def mixes_examples(self) -> str:
        """What the preflight says of it, "" in evaluation mode."""
        return "mixes examples in its statistics, as published: use PublicBatchNorm instead" if self.training else ""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return F.batch_norm(input, None, None, self.weight, self.bias, training=True, eps=self.eps)
