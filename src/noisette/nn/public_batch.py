"""A forward pass of a public batch, which sets the statistics of every norm of a model under the current weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from noisette.core.loss import is_wrapped, outside
from noisette.nn.channel_norm import PublicNorm, Weighted

_WEIGHTED = (
    nn.Linear,
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


class PublicBatch:
    """A forward pre-hook of a model: if weights have changed, it recomputes the statistics of the norms.

    The statistics depend only on the weights and the public batch, never on private inputs. In evaluation mode, and in
    ``state_dict``, they are those of the current weights; while these do not change, nothing is recomputed. A copy of
    the model has its own hook, with the same public batch.

    Args:
        inputs: the model's positional inputs, each with the public examples on its first axis.
        every: in training mode, statistics and their gradients are recomputed after this many changes of the weights.
    """

    def __init__(self, inputs: Sequence[Tensor], every: int) -> None:
        self._inputs = tuple(inputs)
        self._every = every
        self._age = 0  # of the statistics, in changes of the weights
        self._seen: tuple[Any, ...] = ()  # versions of the weights at the last call
        self._measured: tuple[Any, ...] = ()  # versions of the weights that the statistics belong to
        self._is_held = False

    def __deepcopy__(self, memo: dict[int, object]) -> PublicBatch:
        copied = memo[id(self)] = PublicBatch(self._inputs, self._every)
        return copied

    @classmethod
    def attach(cls, model: nn.Module, inputs: Sequence[Tensor], every: int) -> None:
        """Compute the statistics of this model's norms now, and from now on whenever they are outdated."""
        batch = cls(inputs, every)
        with _find_preceding_layers(model):
            batch._measure(model)
        batch._measure(model)  # each norm knows its layer now; from here on its statistics keep their tensors
        model.register_forward_pre_hook(batch, with_kwargs=True)
        model.register_state_dict_pre_hook(batch.before_saving)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Recompute the statistics if weights have changed.

        Raises:
            ValueError: the shape of the inputs differs from that of the public ones.
        """
        if any(map(is_wrapped, model.parameters())):
            return  # a call repeated by torch.func, after the statistics were computed
        self._check_shapes(args)
        self.refresh(model)

    def hold(self, module: nn.Module) -> None:
        """Recompute the statistics if weights have changed; all calls have them until they are let go.

        Within a private batch the model computes with copies of its buffers, and what a call writes there is dropped.
        """
        self.refresh(module)
        self._is_held = True

    def let_go(self) -> None:
        """Recompute the statistics before a call again."""
        self._is_held = False

    def refresh(self, model: nn.Module) -> None:
        """Recompute the statistics if weights have changed, in the same tensors."""
        if self._is_held:
            return
        versions = _versions(model)
        if versions != self._seen:
            self._seen = versions
            self._age += 1
            if (self._age >= self._every or not model.training) and versions != self._measured:
                self._measure(model)

    def before_saving(self, model: nn.Module, prefix: str, keep_vars: bool) -> None:
        """Save the statistics of the weights that are saved."""
        if _versions(model) != self._measured:
            self._measure(model)

    def _measure(self, model: nn.Module) -> None:
        """Run the public pass, in which every norm computes its statistics."""
        inputs = [like(x, model) for x in self._inputs]
        # Function modes are disabled, so that the tape of the private call does not record the public one.
        no_modes = torch._C.DisableTorchFunction()
        with ExitStack() as stack:
            for norm in norms_of(model):
                stack.enter_context(norm.measuring())
            with torch.inference_mode(False), torch.enable_grad(), parametrize.cached(), no_modes, outside():
                model.forward(*inputs)
        self._measured = self._seen = _versions(model)
        self._age = 0

    def _check_shapes(self, args: tuple[Any, ...]) -> None:
        for given, public in zip(args, self._inputs, strict=False):
            if isinstance(given, Tensor) and given.shape[1:] != public.shape[1:]:
                raise ValueError(
                    f"the model was given examples of shape {tuple(given.shape[1:])}, but those of its public batch "
                    f"are of shape {tuple(public.shape[1:])}; use public examples of the shape of the private ones"
                )


def norms_of(model: nn.Module) -> list[PublicNorm]:
    """The norms of a model that take statistics from a public batch."""
    return [module for module in model.modules() if isinstance(module, PublicNorm)]


@contextmanager
def _find_preceding_layers(model: nn.Module) -> Iterator[None]:
    """During a forward pass, tell each norm whose input is the unmodified output of a weighted layer which it is."""
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
    """A value that changes with every parameter, every buffer that is not a norm's own, and the mode."""
    own = {id(buffer) for norm in norms_of(model) for buffer in norm.buffers(recurse=False)}
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if id(buffer) not in own)]
    return model.training, *((id(tensor), tensor._version, tensor.dtype) for tensor in tensors)


def like(x: Tensor, model: nn.Module) -> Tensor:
    """The public input on the model's device, floating-point values in its precision."""
    parameter = next(model.parameters(), x)
    return x.to(parameter.device, parameter.dtype) if x.is_floating_point() else x.to(parameter.device)
