"""Replaces the batch norms of the user's own model by norms for private training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin

from noisette import errors as checks
from noisette.errors import PrivacyError
from noisette.nn.batch_norm import ChannelNorm, FrozenBatchNorm, in_evaluation, like

__all__ = ["convert_batch_norm"]

Model = TypeVar("Model", bound=nn.Module)
Norm = type[ChannelNorm] | type[nn.GroupNorm] | type[nn.LayerNorm] | type[_InstanceNorm]
Inputs = Tensor | Sequence[Tensor]

_MOST_GROUPS, _LEAST_CHANNELS = 32, 16
_STATE = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def convert_batch_norm(
    model: Model, *, to: Norm, public: Inputs | None = None, private: Inputs | None = None, every: int = 1
) -> Model:
    """Replace every batch norm of a model by another norm; scale, shift and names in the state dict do not change.

    The model is changed in place and returned; or the new norm, if the model is a batch norm itself.

    Args:
        model: your own.
        to: :class:`PublicBatchNorm` or :class:`PerExampleBatchNorm`, which need ``public``; :class:`FrozenBatchNorm`,
            which keeps the statistics that the model has unless ``public`` is given; or ``torch.nn.GroupNorm``,
            ``LayerNorm`` (over all of an example) or ``InstanceNorm1d`` to ``3d``, which normalise each example alone.
        public: a batch of public inputs, or several tensors where the model takes several.
        private: the private inputs, to check that no public example is one of them (a PrivacyError).
        every: statistics are recomputed after this many changes of the weights.

    Raises:
        ValueError: arguments do not fit each other, public examples are fewer than two or not finite, or a batch norm
            does more than normalise, such as one of timm with its activation inside; all problems are listed.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    >>> type(convert_batch_norm(model, to=nn.GroupNorm)[1]).__name__
    'GroupNorm'
    """
    inputs = () if public is None else _inputs(public)
    checks.all_of(
        lambda: _check_target(to, inputs),
        lambda: _check_public(inputs) if inputs else None,
        lambda: checks.count(every=every),
        lambda: _refuse_what_would_be_lost(model),
    )
    if private is not None:
        refuse_overlap(inputs, _inputs(private))
    has_norms = any(isinstance(part, _BatchNorm) for part in model.modules())
    if inputs and has_norms:
        try:
            with torch.no_grad(), in_evaluation(model):
                model(*(like(x, model) for x in inputs))
        except RuntimeError as error:
            shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
            raise ValueError(f"the model does not take the public batch, of shape {shapes}: {error}") from error
    converted = cache(partial(_made, to))  # one norm in two places becomes one
    if isinstance(model, _BatchNorm):
        model = converted(model)  # pyright: ignore[reportAssignmentType]
    for part in list(model.modules()):
        part._modules.update(
            {name: converted(child) for name, child in part._modules.items() if isinstance(child, _BatchNorm)}
        )
    if has_norms and issubclass(to, ChannelNorm) and to.needs_public:
        to.use_public(model, inputs, every)
    elif has_norms and inputs:
        _freeze_at(model, inputs)
    return model


def _inputs(given: Inputs) -> tuple[Tensor, ...]:
    return (given,) if isinstance(given, Tensor) else tuple(given)


def _check_target(to: Norm, inputs: Sequence[Tensor]) -> None:
    from_public = issubclass(to, ChannelNorm) and to.needs_public
    if not from_public and not issubclass(to, FrozenBatchNorm | nn.GroupNorm | nn.LayerNorm | _InstanceNorm):
        raise ValueError(
            f"expected `to` to be PublicBatchNorm, PerExampleBatchNorm, FrozenBatchNorm, "
            f"torch.nn.GroupNorm, LayerNorm or InstanceNorm, got {to.__name__}"
        )
    if from_public and not inputs:
        raise ValueError(f"{to.__name__} takes its statistics from public examples: give a batch of them as public")
    if inputs and not from_public and not issubclass(to, FrozenBatchNorm):
        raise ValueError(f"{to.__name__} normalises each example alone; leave public out")


def _refuse_what_would_be_lost(model: nn.Module) -> None:
    """Raise ValueError naming each batch norm that does more than a norm in its place would, and what."""
    named = [(name or "the model itself", part) for name, part in model.named_modules() if isinstance(part, _BatchNorm)]
    if problems := [f"{name}  {type(norm).__name__} {what}" for name, norm in named if (what := _added_by(norm))]:
        raise ValueError(
            f"{len(problems)} batch norms do more than normalise, which a norm in their place would not do:\n  "
            + "\n  ".join(problems)
            + "\nTake them apart into a torch.nn batch norm and what follows it, or replace them yourself"
        )


def _added_by(norm: _BatchNorm) -> str:
    """What a batch norm adds to those of torch, in words; an empty string if it adds nothing."""
    if isinstance(norm, LazyModuleMixin):
        return "is lazy: call the model once with a public input first"
    forward = next(kind for kind in type(norm).__mro__ if "forward" in vars(kind))
    if not forward.__module__.startswith("torch.nn.modules.") or "forward" in vars(norm):
        return "has a forward of its own"
    if norm._modules:
        return f"has modules of its own: {', '.join(norm._modules)}"
    if tensors := {*norm._parameters, *norm._buffers} - {*_STATE}:
        return f"has parameters or buffers of its own: {', '.join(sorted(tensors))}"
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks:
        return "has hooks: remove them first"
    return ""


def _check_public(inputs: Sequence[Tensor]) -> None:
    counts = {len(x) if x.dim() else 0 for x in inputs}
    if len(counts) > 1:
        raise ValueError(f"the public inputs have {', '.join(map(str, sorted(counts)))} examples; give equal numbers")
    if counts.pop() < 2:
        raise ValueError("statistics need at least two public examples; a hundred or more are recommended")
    if not all(bool(x.isfinite().all()) for x in inputs if x.is_floating_point()):
        raise ValueError("the public batch holds values that are not finite")


def refuse_overlap(public: Sequence[Tensor], private: Sequence[Tensor]) -> None:
    """Raise PrivacyError if a public example is a private record too; both are positional inputs."""
    places = {_row(rows): k for k, rows in enumerate(zip(*public, strict=True))}
    if shared := {places[row] for rows in zip(*private, strict=True) if (row := _row(rows)) in places}:
        raise PrivacyError(
            f"{len(shared)} public examples are private records too (the first is number {min(shared)}): there is "
            "no guarantee for public examples; use others"
        )


def _row(tensors: Sequence[Tensor]) -> bytes:
    return b"".join(x.detach().cpu().double().contiguous().numpy().tobytes() for x in tensors)


def _made(to: Norm, norm: _BatchNorm) -> nn.Module:
    if issubclass(to, ChannelNorm):
        return to.of(norm)
    if issubclass(to, nn.GroupNorm | nn.LayerNorm):
        groups = _groups(norm.num_features) if issubclass(to, nn.GroupNorm) else 1
        made: nn.Module = nn.GroupNorm(groups, norm.num_features, norm.eps, norm.affine)
    else:
        made = to(norm.num_features, norm.eps, affine=norm.affine)
    made.weight, made.bias = norm.weight, norm.bias
    return made.train(norm.training)


def _groups(channels: int) -> int:
    """At most 32 groups of at least 16 channels: a small group loses too much information. Source: Wu & He 2018."""
    most = max(1, min(_MOST_GROUPS, channels // _LEAST_CHANNELS))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def _freeze_at(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Set the statistics to those of the public batch under the current weights, from the first norm to the last."""

    def take(norm: FrozenBatchNorm, args: tuple[Tensor, ...]) -> None:
        axes = [axis for axis in range(args[0].dim()) if axis != 1]
        norm.running_mean.copy_(args[0].mean(axes))
        norm.running_var.copy_(args[0].var(axes, correction=0))

    with ExitStack() as hooks, torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, FrozenBatchNorm):
                hooks.enter_context(norm.register_forward_pre_hook(take))
        model(*(like(x, model) for x in inputs))
