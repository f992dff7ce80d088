"""One forward pass of a public batch, which gives every norm of a model its statistics under the weights of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from torch.nn.utils import parametrize

from noisette.nn.channel_norm import PublicNorm, Weighted

_WEIGHTED = (
    nn.Linear,
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


class PublicBatch:
    """A hook before the calls of a model: where weights have changed, its norms get their statistics anew.

    Nothing private is looked at: what a norm gets depends on the weights and on the public batch. In evaluation mode,
    and in what ``state_dict`` gives, the statistics are those of the present weights; while these stay, a call costs
    nothing. A copy of the model has a hook of its own, with the same public batch.

    Args:
        inputs: the model's positional inputs, each with the public examples on its first axis.
        every: in training mode, statistics and their slopes are taken anew at every so many changes of the weights.
    """

    def __init__(self, inputs: Sequence[Tensor], every: int) -> None:
        self._inputs = tuple(inputs)
        self._every = every
        self._age = 0  # of the statistics, in changes of the weights
        self._met: tuple[Any, ...] = ()  # versions of the weights that were met last
        self._taken: tuple[Any, ...] = ()  # versions of the weights that the statistics are those of

    def __deepcopy__(self, memo: dict[int, object]) -> PublicBatch:
        copied = memo[id(self)] = PublicBatch(self._inputs, self._every)
        return copied

    @classmethod
    def attach(cls, model: nn.Module, inputs: Sequence[Tensor], every: int) -> None:
        """Give the norms of this model their statistics from now on, beginning with this moment."""
        batch = cls(inputs, every)
        with _layers_found(model):
            batch._take(model)
        model.register_forward_pre_hook(batch.before_call, with_kwargs=True)
        model.register_state_dict_pre_hook(batch.before_saving)

    def before_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Take the statistics anew where weights have changed.

        Raises:
            ValueError: the inputs have not the shape of the public ones.
        """
        if any(map(is_functorch_wrapped_tensor, model.parameters())):
            return  # a repetition of a call, whose statistics are there
        self._check_shapes(args)
        met = _versions(model)
        if met != self._met:
            self._met = met
            self._age += 1
            if (self._age >= self._every or not model.training) and met != self._taken:
                self._take(model)

    def before_saving(self, model: nn.Module, prefix: str, keep_vars: bool) -> None:
        """What is saved beside the weights are their own statistics."""
        if _versions(model) != self._taken:
            self._take(model)

    def _take(self, model: nn.Module) -> None:
        inputs = [like(x, model) for x in self._inputs]
        # Modes are off, so that a recording of the private call does not hold the public one.
        plainly = torch._C.DisableTorchFunction()
        with _measured(model), torch.inference_mode(False), torch.enable_grad(), parametrize.cached(), plainly:
            model.forward(*inputs)
        self._taken = self._met = _versions(model)
        self._age = 0

    def _check_shapes(self, args: tuple[Any, ...]) -> None:
        for given, public in zip(args, self._inputs, strict=False):
            if isinstance(given, Tensor) and given.shape[1:] != public.shape[1:]:
                raise ValueError(
                    f"the model was given examples of shape {tuple(given.shape[1:])}, but those of its public batch "
                    f"are of shape {tuple(public.shape[1:])}; statistics of the one do not fit the other"
                )


def norms_of(model: nn.Module) -> list[PublicNorm]:
    """The norms of a model that take statistics from a public batch."""
    return [module for module in model.modules() if isinstance(module, PublicNorm)]


@contextmanager
def _measured(model: nn.Module) -> Iterator[None]:
    norms = norms_of(model)
    handles = [norm.layer.register_forward_pre_hook(norm.see_public) for norm in norms if norm.layer is not None]
    for norm in norms:
        norm.begin_measuring()
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for norm in norms:
            norm.end_measuring()


@contextmanager
def _layers_found(model: nn.Module) -> Iterator[None]:
    """Tell each norm that meets the very output of a weighted layer which layer that is."""
    outputs: dict[int, tuple[Tensor, int, Weighted]] = {}

    def remember(layer: Any, args: Any, output: Tensor) -> None:
        outputs[id(output)] = output, output._version, layer

    def tell(norm: Any, args: tuple[Tensor, ...]) -> None:
        known = outputs.get(id(args[0]))
        norm.follow(known[2] if known and known[1] == args[0]._version else None)

    handles = [part.register_forward_hook(remember) for part in model.modules() if isinstance(part, _WEIGHTED)]
    handles += [norm.register_forward_pre_hook(tell) for norm in norms_of(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _versions(model: nn.Module) -> tuple[Any, ...]:
    """What changes whenever a parameter, a buffer that is not a norm's own, or the mode does."""
    own = {id(buffer) for norm in norms_of(model) for buffer in norm.buffers(recurse=False)}
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if id(buffer) not in own)]
    return model.training, *((id(tensor), tensor._version, tensor.dtype) for tensor in tensors)


def like(x: Tensor, model: nn.Module) -> Tensor:
    """The public input where the model is, in its precision."""
    parameter = next(model.parameters(), x)
    return x.to(parameter.device, parameter.dtype) if x.is_floating_point() else x.to(parameter.device)
