"""What a call of the model leaves for the backward pass: its scores, and the bounds that held in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves

from noisette.core.vmap import example_axis, unwrapped
from noisette.errors import PrivacyError
from noisette.lipschitz.module_hooks import RandomState, module_hooks_disabled
from noisette.lipschitz.torch_modules import check_measured_shape, is_measured


@dataclass(frozen=True)
class Limits:
    """The bounds of one example, for the weights, modes and settings of one call."""

    score_gradient: float  # on the norm of its gradient with respect to the scores
    sensitivities: Mapping[str, float]  # by parameter


@dataclass(frozen=True)
class ModelCall:
    """One call of the model with gradients enabled."""

    scores: GradientEdge
    examples: int  # 1 inside of vmap, where the call stands for one example of the batch
    vectorized_axis: int | None  # the axis of the gradient at the scores on which vmap has the examples
    limits: Limits
    hooked: GradientEdge | None  # the scores of the call in which the user's hooks ran, if there are any


def made(call: ModelCall | None, what: str) -> ModelCall:
    """The call, which the losses come from.

    Args:
        call: the last one that no backward has used.
        what: has to be called, and when, for the message.

    Raises:
        PrivacyError: there is none.
    """
    if call is None:
        raise PrivacyError(f"the losses do not come from a call of the model: call {what}")
    return call


def record_call(
    model: nn.Module,
    shape: tuple[int, ...],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    output: Any,
    random: RandomState | None,
    limits: Limits,
) -> tuple[Tensor, ModelCall]:
    """The scores for the user, and the record of this call, which has scores of its own in the graph.

    A hook that the user registers on the returned scores sees the gradient of the loss, before it is scaled to its
    bound, and none below.

    Args:
        model: the model.
        shape: declared shape of one example at its input.
        args: arguments of the call, after all pre-hooks.
        kwargs: named arguments of the call.
        output: what it returned.
        random: state of the generators before the call; given where the model has hooks of the user.
        limits: the bounds of the call.

    Raises:
        PrivacyError: input or output have another shape than the bounds assume, the scores were computed in low
            precision, or a hook has changed them.
    """
    _check_precision(output)
    examples = _check_shapes(shape, [*args, *kwargs.values()], output)
    hooked = None
    if random is not None:
        hooked = output
        with module_hooks_disabled(model), random.repeated():
            output = model(*args, **kwargs)
        _check_same_scores(unwrapped(hooked), unwrapped(output))
    scores = output.clone()
    axis = example_axis(scores)
    if axis is not None and examples != 1:
        raise PrivacyError(
            f"the model was called with {examples} rows for one example, but its bounds are those of one row: call it "
            "with a batch axis of length 1"
        )
    edge = get_gradient_edge(unwrapped(scores))
    beside = None if hooked is None else get_gradient_edge(unwrapped(hooked))
    return scores.clone(), ModelCall(edge, examples, axis, limits, hooked=beside)


def check_hooks_only_looked(with_hooks: Mapping[str, Tensor | None], without: Mapping[str, Tensor | None]) -> None:
    """Check that the gradients of a call with the user's hooks are those without them.

    Raises:
        PrivacyError: they differ.
    """
    for name, gradient in without.items():
        hooked = with_hooks[name]
        if gradient is None and hooked is None:
            continue
        if gradient is None or hooked is None or _differ(hooked, gradient):
            raise PrivacyError(
                f"a hook has changed the gradient of {name} in the backward pass, which its bound does not cover. "
                "Hooks that return nothing and write nothing are welcome; do the rest in a module with bounds"
            )


def _check_precision(output: Any) -> None:
    if not isinstance(output, Tensor) or not unwrapped(output).requires_grad:
        raise PrivacyError(
            f"the model must return one tensor of scores that requires a gradient, got {type(output).__name__}"
        )
    if torch.is_autocast_enabled(output.device.type):
        raise PrivacyError("rounding under autocast exceeds the slack of the bounds; call the model outside of it")
    if output.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        raise PrivacyError(
            "rounding in TF32 exceeds the slack of the bounds; set torch.backends.cuda.matmul.allow_tf32 = False"
        )


def _check_shapes(shape: tuple[int, ...], arguments: list[Any], scores: Tensor) -> int:
    """The number of examples of the call, if its first tensor and its scores have the shapes that the bounds assume."""
    found = next((leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)), None)
    if found is None or found.dim() == 0 or tuple(found.shape[1:]) != shape:
        got = "no tensor" if found is None else f"an input of shape {tuple(found.shape)}"
        raise PrivacyError(
            f"the bounds are those of examples of shape {shape} (input_shape), but the model got {got}: expected "
            f"(b, {', '.join(map(str, shape))}). Resize or pad the examples, or declare the larger shape"
        )
    if scores.dim() == 0 or scores.shape[0] != found.shape[0]:
        raise PrivacyError(
            f"the model must return one row of scores for each example, got shape {tuple(scores.shape)} for "
            f"{found.shape[0]} examples"
        )
    return found.shape[0]


def _check_same_scores(hooked: Tensor, scores: Tensor) -> None:
    if hooked.shape != scores.shape or _differ(hooked, scores):
        raise PrivacyError(
            "a forward hook has changed what a module takes or returns, which the bounds do not cover. Hooks that "
            "return nothing and write nothing are welcome; do the rest in a module with bounds"
        )


@torch.no_grad()
def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than their rounding; which of them is released does not depend on it."""
    return not bool((one - other).double().norm() <= 1e-4 * other.double().norm())


class Recorder(Protocol):
    """What the hooks on a model report its calls to."""

    model: nn.Module

    def before_call(self) -> None: ...

    def after_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Tensor: ...


class ModelHooks:
    """The hooks on a model that report its calls. In a copy of the model they do nothing."""

    def __init__(self, recorder: Recorder | None) -> None:
        self._recorder = ref(recorder) if recorder is not None else None

    def register(self, model: nn.Module) -> list[Any]:
        """Register them, and a check of each shape that the bounds know from measuring; returns the handles."""
        measured = [module for module in model.modules() if is_measured(module)]
        return [
            model.register_forward_pre_hook(self._before, prepend=True),
            model.register_forward_hook(self._after, with_kwargs=True),
            *(module.register_forward_hook(check_measured_shape) for module in measured),
        ]

    def __deepcopy__(self, memo: dict[int, object]) -> ModelHooks:
        return ModelHooks(None)

    def __reduce__(self) -> tuple[type[ModelHooks], tuple[None]]:
        return ModelHooks, (None,)

    def _recorder_of(self, module: nn.Module) -> Recorder | None:
        recorder = self._recorder() if self._recorder is not None else None
        return recorder if recorder is not None and recorder.model is module else None

    def _before(self, module: nn.Module, args: Any) -> None:
        if recorder := self._recorder_of(module):
            recorder.before_call()

    def _after(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Tensor | None:
        if torch.is_grad_enabled() and (recorder := self._recorder_of(module)):
            return recorder.after_call(args, kwargs, output)
        return None
