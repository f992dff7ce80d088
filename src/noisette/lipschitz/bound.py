"""Sensitivities from Lipschitz constants: the bound of a run without per-example clipping."""

import math
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from noisette.core import vmap
from noisette.core.backward import gradients_apart
from noisette.core.clip import Accumulator, ClippingRule, Group, clipping_factors
from noisette.core.loss import CALL, Loss, Microbatch, ModelBuffers, OutsideTensors, Unwrapped, is_sharded
from noisette.core.release import BoundedSum
from noisette.core.trace import kept_from_another_call, one_value, outputs_of, tensors_among
from noisette.core.vmap import is_wrapped, one_example, shared_numbers
from noisette.errors import PrivacyError, first_few, not_negative, warn
from noisette.lipschitz import propagation
from noisette.lipschitz.projections import Constrained, project
from noisette.lipschitz.propagation import NormBound, check_measured_shape, is_measured


def weight_fingerprint(model: nn.Module) -> tuple[object, ...]:
    """It changes if a weight is written, replaced or cast, and if a certified norm is no longer that of its weight.

    Writes through ``.data`` are not seen.
    """
    weights = [(p._version, p.data_ptr(), p.dtype) for p in model.parameters()]
    norms = [(m, m.projection, m.norm) for m in model.modules() if isinstance(m, Constrained)]
    return (*weights, *norms)


def score_clipping(rule: ClippingRule | None) -> Group:
    """How each example's gradient at the scores is clipped; to an infinite norm without a rule."""
    group, *others = [Group(("scores",), math.inf)] if rule is None else rule.groups(["scores"])
    if others or group.count is not None:
        raise ValueError(f"logit clipping needs one constant norm, as FlatClipping(0.1), got {type(rule).__name__}")
    return group


def clipped_at_scores(gradients: Tensor, losses: Tensor, group: Group) -> Tensor:
    """Each example's gradient at the scores, scaled down by its group; zeros where it or the loss is not finite."""
    norms = gradients.double().flatten(1).norm(dim=1).where(losses.detach().isfinite(), math.nan)
    factors = clipping_factors([group], norms.unsqueeze(0))[0].view(-1, *[1] * (gradients.dim() - 1))
    return torch.where(factors.isfinite(), gradients * factors.to(gradients.dtype), 0)


_STARTS, _STEPS = 2, 30  # of the search for an example that exceeds its bound
_STEP_SIZE = 0.3  # relative to the norm of the variable
_ROUNDING = 2.0**-13


def check_stated_bounds(model: nn.Module, shape: Sequence[int], limit: float, stated: Mapping[str, float]) -> None:
    """Raise PrivacyError if a search finds an example that exceeds its bound, in models with modules of the user's."""
    kinds = {type(module) for module in model.modules()}
    own = sorted(kind.__name__ for kind in kinds if kind.__module__.partition(".")[0] not in ("torch", "noisette"))
    if own and (ratio := largest_gradient_ratio(model, shape, limit, stated)) > 1 + _ROUNDING:
        raise PrivacyError(
            f"an example was found whose gradient is {ratio:.4g} times its bound. Bounds of your own modules "
            f"({', '.join(own)}) do not hold: correct their bound_forward and bound_backward"
        )


def largest_gradient_ratio(model: nn.Module, shape: Sequence[int], limit: float, stated: Mapping[str, float]) -> float:
    """The largest ratio of a gradient norm to its bound that a search finds; ``limit`` is that at the scores."""
    parameters, bounds = [model.get_parameter(name) for name in stated], list(stated.values())
    largest = 0.0
    with torch.random.fork_rng(), torch.enable_grad(), ModelBuffers(model).lent():
        torch.manual_seed(0)
        for _ in range(_STARTS):
            x = torch.randn(1, *shape).to(parameters[0])
            with suppress(RuntimeError):  # an operation without a second derivative ends the search
                cotangent = torch.randn_like(model(x).detach())
                for _ in range(_STEPS):  # of an ascent over the input and the score gradient
                    x, cotangent = x.detach().requires_grad_(), cotangent.detach().requires_grad_()
                    direction = limit * cotangent / cotangent.norm()
                    gradients = torch.autograd.grad((model(x) * direction).sum(), parameters, create_graph=True)
                    # Squared ratios, because a norm has no derivative at zero.
                    ratios = torch.stack([g.square().sum() / s**2 for g, s in zip(gradients, bounds, strict=True)])
                    largest = max(largest, float(ratios.detach().max().sqrt()))
                    climbs = torch.autograd.grad(ratios.sum(), [x, cotangent], materialize_grads=True)
                    x, cotangent = (
                        value
                        + _STEP_SIZE * value.norm() * climb / climb.norm().clamp(min=torch.finfo(climb.dtype).tiny)
                        for value, climb in zip((x, cotangent), climbs, strict=True)
                    )
    return largest


class LossWatch(TorchFunctionMode):
    """Raises PrivacyError where the loss uses a tensor from outside that may come from records, or of another call."""

    def __init__(self, of_model: Iterable[Tensor], outside: OutsideTensors) -> None:
        super().__init__()
        # The values keep their tensors alive, so that no ``id`` is reused.
        self._known = {id(tensor): tensor for tensor in of_model}
        self._outside = outside
        self._call = object()

    def begin(self, tensors: Sequence[Tensor]) -> None:
        """The loss begins, with these tensors of the examples."""
        for tensor in tensors:
            setattr(tensor, CALL, self._call)

    def buffer(self, values: Tensor) -> Tensor:
        """What stands in the model for a buffer: a copy."""
        copy = values.detach().clone()
        self._known[id(copy)] = copy
        return copy

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tensors_among(args, kwargs):
            if is_wrapped(tensor):
                self._check_of_this_call(tensor)
            elif id(tensor) not in self._known:
                self._outside.check(tensor)
        output = func(*args, **kwargs)
        for tensor in outputs_of(output):
            if is_wrapped(tensor):
                setattr(tensor, CALL, self._call)
            else:
                self._known[id(tensor)] = tensor
                if not tensor.requires_grad:
                    self._outside.made(tensor)
        return output

    def _check_of_this_call(self, tensor: Tensor) -> None:
        """Without it ``vmap`` would take a tensor of other examples row by row, as that of the examples now."""
        if getattr(tensor, CALL, self._call) is not self._call:
            raise kept_from_another_call(tensor)
        setattr(tensor, CALL, self._call)  # made by code that is hidden from torch functions


_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class ModelCall(NamedTuple):
    """The scores of one call of the model for all examples, (b, 1, ...), twice."""

    scores: Tensor
    leaf: Tensor  # without a graph: the loss is computed from it, and the model's backward pass begins at the scores


@contextmanager
def recorded_calls(model: nn.Module, shape: tuple[int, ...]) -> Iterator[list[ModelCall]]:
    """Within it every call of the model with gradients enabled adds to the list, and no hook of the user runs.

    A call that the bounds are not about, such as one with an example of another shape, is a PrivacyError.
    """
    calls: list[ModelCall] = []

    def record(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> Tensor | None:
        if not torch.is_grad_enabled():
            return None
        with torch._C.DisableTorchFunction():  # what is recorded here is no operation of the loss
            _check_precision(output)
            _check_shapes(shape, [*args, *kwargs.values()], output)
            level = _level_of(output)
            with vmap.outside():
                scores = vmap.physical(output)
                if not scores.requires_grad:
                    raise PrivacyError("the scores depend on no trainable parameter: unfreeze one (requires_grad_())")
                call = ModelCall(scores, scores.detach().requires_grad_())
        calls.append(call)
        return vmap.add_example_axis(call.leaf, 0, level).clone()  # which the loss may write into

    if hooked := [name or "the model itself" for name, module in model.named_modules() if any(_hooks_of(module))]:
        warn(
            f"hooks of {', '.join(hooked)} do not run in accumulate, because bounds are about modules alone. What a "
            "hook changes belongs in a module with bounds or in the loss; to log values, call the model yourself"
        )
    found = [(hooks, dict(hooks)) for hooks in _hooks(model) if hooks]
    for hooks, _ in found:
        hooks.clear()
    try:
        with ExitStack() as ours:
            for module in filter(is_measured, model.modules()):
                ours.enter_context(module.register_forward_hook(check_measured_shape))
            ours.enter_context(model.register_forward_hook(record, with_kwargs=True))
            yield calls
    finally:
        for hooks, kept in found:
            hooks.update(kept)


def gradient_at_scores(losses: Tensor, calls: list[ModelCall], parameters: Mapping[str, Tensor]) -> Tensor:
    """The gradient of each example's loss with respect to the scores of the last call, (b, 1, ...).

    Losses that depend on no call, on several, or on a parameter otherwise than through the scores, are a PrivacyError.
    """
    if not calls:
        raise PrivacyError("the losses do not come from a call of the model: call it in the loss, gradients enabled")
    sources = [*parameters.values(), *(call.leaf for call in calls)]
    found = torch.autograd.grad(losses.sum(), sources, allow_unused=True) if losses.requires_grad else [None]
    *others, last = found
    if any(g is not None for g in others):
        reached = [name for name, g in zip(parameters, others, strict=False) if g is not None]
        what = ", ".join(reached) if reached else f"the scores of {len(calls)} calls of the model"
        raise PrivacyError(
            f"the losses depend on {what} other than through the scores of the model's last call: compute them only "
            "from these scores; put penalties on the weights into the optimizer (weight_decay)"
        )
    if last is None:
        raise PrivacyError("the losses do not depend on the scores of the model's last call")
    return last


def _hooks(model: nn.Module) -> Iterator[MutableMapping[int, Any]]:
    """The tables of all hooks that a call of the model passes."""
    yield from (getattr(torch_module, "_global" + kind) for kind in _KINDS)
    for module in model.modules():
        yield from _hooks_of(module)


def _hooks_of(module: nn.Module) -> list[MutableMapping[int, Any]]:
    return [getattr(module, kind) for kind in _KINDS]


def _check_precision(output: Any) -> None:
    if not isinstance(output, Tensor):
        raise PrivacyError(f"the model must return one tensor of scores, got {type(output).__name__}")
    if torch.is_autocast_enabled(output.device.type):
        raise PrivacyError("rounding under autocast exceeds the slack of the bounds; call the model outside of it")
    if output.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        raise PrivacyError("TF32 rounds beyond the bounds' slack; set torch.backends.cuda.matmul.allow_tf32 = False")


def _check_shapes(shape: tuple[int, ...], arguments: list[Any], scores: Tensor) -> None:
    """Check that the first tensor of a call and its scores have the shapes of one example that the bounds assume."""
    found = next((leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)), None)
    if found is None or found.dim() == 0 or tuple(found.shape[1:]) != shape:
        got = "no tensor" if found is None else f"an input of shape {tuple(found.shape)}"
        raise PrivacyError(
            f"the bounds are those of examples of shape {shape} (input_shape), but the model got {got}: expected "
            f"(1, {', '.join(map(str, shape))}). Resize or pad the examples, or declare the larger shape"
        )
    if found.shape[0] != 1:
        raise PrivacyError(
            f"the model was called with {found.shape[0]} rows for one example, but its bounds are those of one row: "
            "call it with a batch axis of length 1"
        )
    if scores.dim() == 0 or scores.shape[0] != 1:
        raise PrivacyError(f"the model must return one row of scores for an example, got shape {tuple(scores.shape)}")


def _level_of(scores: Tensor) -> int:
    """The level of ``vmap`` at which the scores are those of all examples."""
    if not vmap.is_wrapped(scores):
        raise PrivacyError("the scores do not depend on the example: call the model with the loss's own arguments")
    if not vmap.is_batched(scores) or vmap.is_wrapped(vmap.physical(scores)):
        raise PrivacyError("the model was called inside of another vmap or transform; call it with one example outside")
    return vmap.level_of(scores)


class LipschitzLoss(Protocol):
    """A loss with a bound on the norm of one example's gradient at its scores, also if their norm has a bound."""

    def lipschitz(self, logit_bound: float | None = None) -> float: ...


@dataclass(frozen=True)
class LayerBound:
    """Bounds on one example at one layer, for the current weights."""

    name: str
    kind: str
    input_norm: float  # bound on the norm of the layer's input
    gradient_norm: float  # bound on the norm of the gradient with respect to the layer's output
    sensitivities: Mapping[str, float]  # by parameter


class LipschitzBound:
    """Derives the sensitivity of each parameter from the Lipschitz constants of the layers, the input and the loss.

    Only the gradient at the scores is clipped, so a step takes as long as one without privacy. Weights are projected
    back onto their sets after each step. Nothing is attached to the model between calls of :meth:`accumulate`.

    Args:
        model: layers of ``noisette.nn.lipschitz`` and torch modules that have a bound, with a ``BoundedInput`` in front
            of the first layer that trains.
        loss: of ``noisette.nn.lipschitz``; gradients of the loss that is trained are scaled down to its Lipschitz
            constant.
        input_shape: of one example, without the batch axis; bounds depend on it, so others are refused.
        logit_clipping: clips each example's gradient at the scores below that constant: ``FlatClipping(C)``.
        slack: relative increase of every sensitivity that covers rounding errors.

    Guarantee: adding or removing one example changes each sum by at most its bound, for every input and every label,
    provided that the bounds stated by the user's own modules hold; a short search for a counterexample is made here.
    Source: Bethune et al. 2024, algorithms 1 and 2.

    Raises:
        PrivacyError: a trainable parameter has no bound, or an example exceeds what a module of the user's states.

    >>> from noisette.nn.lipschitz import BoundedInput, SpectralLinear, TauCrossEntropy
    >>> model = nn.Sequential(BoundedInput(2.0), SpectralLinear(4, 3))
    >>> bound = LipschitzBound(model, loss=TauCrossEntropy(tau=1.0), input_shape=(4,), slack=0.0)
    >>> {name: round(value, 4) for name, value in bound.sensitivities().items()}
    {'1.weight': 2.8284}
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: LipschitzLoss,
        input_shape: Sequence[int],
        logit_clipping: ClippingRule | None = None,
        slack: float = 1e-4,
    ) -> None:
        not_negative(slack=slack)
        self._unwrapped = Unwrapped(model)
        self.model = model = self._unwrapped.module
        if any(map(is_sharded, model.parameters())):
            raise PrivacyError(
                "weights of Lipschitz networks are projected whole, not as shards: give each rank the whole model"
            )
        self.loss = loss
        self.input_shape = tuple(input_shape)  # of one example, without the batch axis
        self.logit_clipping = logit_clipping
        self.slack = float(slack)
        self.parameters: Mapping[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ValueError("the model has no trainable parameter: every one has requires_grad=False")
        self._projected: tuple[object, ...] | None = None  # the fingerprint of the weights after their projection
        self._pending = Accumulator()
        self._outside = OutsideTensors()
        self._buffers = ModelBuffers(model)
        self._held: Mapping[str, float] | None = None  # sensitivities of the batch: those of its first microbatch
        self._project_if_changed()
        check_stated_bounds(model, self.input_shape, self.score_gradient_bound(), self.sensitivities())

    @property
    def _input(self) -> NormBound:
        return NormBound(math.inf, self.input_shape)

    def sensitivities(self) -> dict[str, float]:
        """Bound on one example's gradient of each parameter, by name, for the current weights; PrivacyError if none."""
        _, found = propagation.backward(self.model, self._input, self.score_gradient_bound())
        if missing := [name for name, p in self.parameters.items() if p not in found]:
            raise PrivacyError(
                f"no module states a sensitivity for {', '.join(missing)}: return one from "
                "bound_backward, or freeze the parameter (requires_grad=False)"
            )
        if infinite := [name for name, p in self.parameters.items() if not found[p] < math.inf]:
            raise PrivacyError(
                f"no finite sensitivity for {', '.join(infinite)}: put a noisette.nn.lipschitz.BoundedInput in front "
                "of the first module that trains, and only modules with a bound behind it"
            )
        return {name: found[p] * (1 + self.slack) for name, p in self.parameters.items()}

    def layers(self) -> list[LayerBound]:
        """The bounds at each layer of the model, in the order of the forward pass."""
        names: dict[Tensor, str] = {p: name for name, p in self.parameters.items()}
        bounds: list[LayerBound] = []
        g = self.score_gradient_bound()
        for name, layer, x in reversed(propagation.layers(self.model, self._input)):
            g_input, found = propagation.backward(layer, x, g)
            own = {names[p]: value * (1 + self.slack) for p, value in found.items() if p in names}
            bounds.append(LayerBound(name, type(layer).__name__, x.norm, g, own))
            g = g_input
        return bounds[::-1]

    def before_first_batch(self, columns: Sequence[Tensor] = ()) -> None:
        """Remember which tensors exist, so that a loss uses no other from outside, and none of the records."""
        self._outside.before_first_batch(columns)

    def begin_batch(self, still_to_come: float = 1.0, seed: int = 0) -> None:
        """Project weights that were loaded or changed since the last step, and remember the buffers."""
        self._project_if_changed()
        self._buffers.begin_batch(seed)

    def end_batch(self) -> list[str]:
        return self._buffers.end_batch()

    def accumulate(self, loss: Loss, *batch: Any, public: Iterable[Tensor] = (), **keywords: Any) -> None:
        """Add the gradients of these examples to the pending sums, from the loss of one example.

        As :meth:`noisette.PrivateRun.accumulate`, but the loss is computed from the scores of its last call of the
        model, whose hooks do not run.

        Raises:
            PrivacyError: arguments or loss are not of this kind, the loss uses a tensor from outside that changes, or
                weights or bounds have changed since the first microbatch.
        """
        self.add(loss, Microbatch(batch, keywords), tuple(public))

    def add(self, loss: Loss, microbatch: Microbatch, public: tuple[Tensor, ...]) -> None:
        """Add the gradients of the examples of a microbatch, as :meth:`accumulate`."""
        self._project_if_changed()
        if microbatch.count == 0:
            return
        losses, calls = self._losses(loss, microbatch, public)
        self._refuse_changed_weights()
        at_scores = gradient_at_scores(losses, calls, self._trained())
        sensitivities = self.sensitivities()
        self._refuse_grown_bounds(sensitivities)
        group = replace(score_clipping(self.logit_clipping), bound=self.score_gradient_bound())
        at_scores = clipped_at_scores(at_scores, losses, group)
        self._pending.add(self._gradients(calls[-1], at_scores))
        self._held = self._held or sensitivities

    def _losses(self, loss: Loss, batch: Microbatch, public: Iterable[Tensor]) -> tuple[Tensor, list[ModelCall]]:
        """The loss of each example, (b,), and the calls of the model that it has made."""
        self._outside.begin(public)
        watch = LossWatch([*self.model.parameters(), *self._buffers.values().values()], self._outside)
        drawn = shared_numbers(loss, self._buffers.seed)
        called = recorded_calls(self.model, self.input_shape)
        with drawn as (loss, _), called as calls, one_example(self.model, batch) as (_, rows):
            watch.begin(rows)
            one = batch.with_tensors(rows)
            with watch, self._buffers.lent(watch.buffer):
                value = loss(self.model, *one.args, **one.kwargs)
            value = one_value(value).reshape(())
            losses = vmap.physical(value) if is_wrapped(value) else value.expand(batch.count)
        self._outside.end()
        return losses, calls

    def _gradients(self, call: ModelCall, at_scores: Tensor) -> dict[str, Tensor]:
        """The sum over the examples of each parameter's gradient, for these gradients at the scores of a call."""
        trained = self._trained()
        with gradients_apart(trained.values()):
            gradients = torch.autograd.grad([call.scores], list(trained.values()), [at_scores], allow_unused=True)
        found = {name: g for name, g in zip(trained, gradients, strict=True) if g is not None}
        if not all(g.sum().isfinite() or g.isfinite().all() for g in found.values()):  # the sum is a fast first test
            raise PrivacyError(
                "a gradient is not finite though every input is bounded: the weights have overflowed. Lower the "
                "learning rate, or start from finite weights"
            )
        return found

    def _trained(self) -> dict[str, Tensor]:
        """The parameters, without those that were frozen since."""
        return {name: p for name, p in self.parameters.items() if p.requires_grad}

    def accumulate_nothing(self) -> None:
        """Nothing is exchanged in a microbatch of a model that is not sharded."""

    def pop_sums(self) -> list[BoundedSum]:
        """The pending sum of each parameter, zeros without examples; nothing is pending afterwards."""
        self._project_if_changed()
        held = self._held if self._held is not None else self.sensitivities()
        shares, sums = self.shares(held), self._pending.pop_sums(self.parameters)
        self._held = None
        return [BoundedSum((p,), (sums[name],), held[name], shares[name]) for name, p in self.parameters.items()]

    def shares(self, sensitivities: Mapping[str, float]) -> dict[str, float]:
        """The share of each parameter in the noise budget of a release; they add up to one.

        The total noise variance is the least: with p elements in a parameter, sum p s^2 over the deviations s is
        minimal subject to sum (sensitivity / s)^2 = 1 / sigma^2 where s^2 is in proportion to sensitivity / sqrt(p).
        """
        parts = {name: bound * math.sqrt(self.parameters[name].numel()) for name, bound in sensitivities.items()}
        total = sum(parts.values())
        return {name: part / total for name, part in parts.items()}

    def after_step(self) -> None:
        """Project the weights onto their sets."""
        if half := [name for name, p in self.parameters.items() if p.dtype.itemsize < 4]:
            raise PrivacyError(f"{', '.join(half)}: half precision rounds beyond the bounds' slack; call model.float()")
        project(self.model)
        self._projected = weight_fingerprint(self.model)

    def state(self) -> Mapping[str, float]:
        """Nothing is derived from released values but the weights."""
        return {}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what :meth:`state` returned."""

    def close(self) -> None:
        """Give a wrapper of the model its exchange back; the weights keep their last projected values."""
        self._unwrapped.close()

    def score_gradient_bound(self) -> float:
        """Bound on one example's gradient at its scores: the loss's Lipschitz constant, or a smaller clipping norm."""
        norm = propagation.forward(self.model, self._input).norm
        return min(self.loss.lipschitz(norm if norm < math.inf else None), score_clipping(self.logit_clipping).bound)

    def _refuse_grown_bounds(self, sensitivities: Mapping[str, float]) -> None:
        """Check that no bound exceeds that of the first microbatch; whether there is a later one depends on records."""
        for name, held in (self._held or {}).items():
            if (grown := sensitivities[name]) > held:
                raise PrivacyError(
                    f"the sensitivity of {name} has grown from {held:.6g} to {grown:.6g} since the first microbatch of "
                    "this batch: change the mode and the settings of model, loss and bound between batches"
                )

    def _project_if_changed(self) -> None:
        """Project weights that the user loaded or changed since the last projection, unless gradients are pending."""
        if self._pending:
            self._refuse_changed_weights()
        elif self._projected != weight_fingerprint(self.model):
            self.after_step()

    def _refuse_changed_weights(self) -> None:
        if self._projected != (now := weight_fingerprint(self.model)):
            before = zip(dict(self.model.named_parameters()), now, self._projected or (), strict=False)
            changed = first_few([name for name, new, old in before if new != old]) or "the norm of a weight"
            raise PrivacyError(
                f"{changed}: changed between the first records of a batch and its release, though the bounds are those "
                "of its start; change weights before batch.microbatches(), or after optimizer.step()"
            )
