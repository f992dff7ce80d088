"""Proves the bound on the user's own model, with public random inputs, before anything private is released.

Two measured properties (S1, S2) together say that no record moves the sum by more than the bound: the sum of one
example alone is within the bound, and the sum of a batch is the sum of its examples' own. A list of forbidden layers
cannot see coupling inside a module of the user's; this can.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports, reportMissingModuleSource]
from torch.utils._pytree import tree_flatten, tree_map

from noisette.bounding.base import BoundedSum, Derived, GradientBound
from noisette.errors import MissingRule, PrivacyRefusal
from noisette.release import shares_of
from noisette.steepest import steepest_found
from noisette.stilled import Stilled, stilled_again

_EXAMPLES = 8
_SOUGHT_FROM = 2  # examples that a search for a steeper one starts from
_SEED = 20160721
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 2e-3}
_TOLERANCE_LOW_PRECISION = 5e-2


@dataclass(frozen=True)
class Call:
    """Positional and keyword arguments of one call of a module."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def map(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with every tensor changed."""
        args, kwargs = tree_map(lambda v: change(v) if isinstance(v, Tensor) else v, (self.args, dict(self.kwargs)))
        return Call(args, kwargs)

    def tensors(self) -> list[Tensor]:
        """Every tensor among the arguments."""
        return [leaf for leaf in tree_flatten((self.args, dict(self.kwargs)))[0] if isinstance(leaf, Tensor)]


def mixing_modules(model: nn.Module) -> list[str]:
    """What to say of each module known to normalise over the batch, empty if there is none."""
    return [
        f"{name or 'the model itself'}  {type(module).__name__} {problem}"
        for name, module in model.named_modules()
        if (problem := _mixing(module))
    ]


def _mixing(module: nn.Module) -> str:
    """How the module mixes examples, empty if it does not. A module may say so itself, in ``mixes_examples``."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return (
            "mixes examples: put PublicBatchNorm or GroupNorm in its place (noisette.nn.convert_batch_norm), or call "
            ".eval() on it"
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.training and module.track_running_stats:
        return "mixes examples in its running statistics: set track_running_stats=False, or call .eval() on it"
    return getattr(module, "mixes_examples", "")


def refuse_mixing_modules(model: nn.Module) -> None:
    """No module of the model normalises over the batch.

    Raises:
        PrivacyRefusal: listing every module that does.
    """
    if problems := mixing_modules(model):
        raise PrivacyRefusal(f"{len(problems)} modules of the model mix examples:\n  " + "\n  ".join(problems))


class ProvenFirst:
    """A hook before the calls of a model: proves the bound inside the first recorded call in each of its modes.

    A mode is which modules train and which evaluate: ``model.train()`` can wake a batch norm that was proven asleep.
    """

    def __init__(self, bound: GradientBound | None) -> None:
        self._bound = bound
        self._proven: set[tuple[bool, ...]] = set()

    def __deepcopy__(self, memo: dict[int, object]) -> ProvenFirst:
        return ProvenFirst(None)

    def __reduce__(self) -> tuple[type[ProvenFirst], tuple[None]]:
        return ProvenFirst, (None,)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = self._bound
        if bound is None or module is not bound.model or not torch.is_grad_enabled():
            return
        mode = tuple(part.training for part in module.modules())
        if mode in self._proven:
            return
        self._proven.add(mode)
        try:
            prove(bound, Call(args, kwargs))
        except BaseException:
            self._proven.discard(mode)
            raise


def prove(bound: GradientBound, example: Call) -> None:
    """Check the bound on this model: singleton bound (S1) and additivity (S2), for inputs shaped like ``example``.

    Random operations such as dropout are stilled, buffers and the random state are put back, and only the shapes and
    types of ``example`` are read.

    Guarantee: a model whose gradients, or their clipping, depend on other examples of the batch does not pass.

    Raises:
        PrivacyRefusal: naming the first module whose output for one example changes with the others, or what the model
            keeps of its inputs.
    """
    for check in CHECKS:
        check.run(bound, example)


def _refuse_coupling(bound: GradientBound, example: Call) -> None:
    with torch.random.fork_rng(), _buffers_kept(bound.model) as put_back:
        torch.manual_seed(_SEED)
        public = _public_batch(example)
        _refuse_mixing(bound, public)
        # Equal examples want the same places and the same expert, and a state that has wandered off shows little.
        with _before_calls(bound.model, put_back):
            _refuse_mixing(bound, _batched(public, lambda tensor: tensor[:1].expand_as(tensor).clone()))


def _refuse_mixing(bound: GradientBound, public: Call) -> None:
    problem = _problem(bound, public)
    if problem and _tolerance(bound.model) == _TOLERANCE[torch.float32]:
        # Alone and in a batch values are rounded differently, and then a maximum of two that nearly tie may change.
        with _in_double(bound.model), suppress(RuntimeError):
            problem = _problem(bound, public.map(_doubled))
    if problem:
        raise PrivacyRefusal(problem)


def _problem(bound: GradientBound, public: Call) -> str:
    """What speaks against additivity, "" if it holds.

    Raises:
        PrivacyRefusal: one example alone is above the bound, which no other precision excuses.
    """
    loss = _Projection()
    raw = [_singleton(bound, public, i, loss, 1.0) for i in range(_EXAMPLES)]
    scale = _scale_to_bound(bound, public, loss, raw)
    singles = [_singleton(bound, public, i, loss, scale) for i in range(_EXAMPLES)]
    together = _together(bound, public, loss, scale)
    tolerance = _tolerance(bound.model)
    for part in (part for single in singles for part in single):
        if not (moved := _norm(part)) <= part.bound * (1 + min(tolerance, 1e-5)):
            raise PrivacyRefusal(
                f"one example alone moves the sum by {moved:.6g}, above the bound {part.bound:.6g}: the norm that "
                "was clipped is not the norm of what was added. Do not train with this model; it uses an operation "
                "in a way that its rule does not expect. engine=noisette.Loop() needs no rule."
            )
    apart = float((_joint_vector(together) - torch.stack([_joint_vector(s) for s in singles]).sum(0)).norm())
    if apart <= tolerance:
        return ""
    return (
        f"the sum of a batch differs from the sum of its examples by {apart:.3g} times the bound: "
        f"{_first_mixing_module(bound.model, public) or _MIXING_UNSEEN}"
    )


def _refuse_steeper(bound: GradientBound, example: Call) -> None:
    """Where the bound follows from the network, no example that a short ascent finds exceeds it."""
    with torch.random.fork_rng(), _buffers_kept(bound.model), Stilled():
        torch.manual_seed(_SEED)
        inputs = _public_batch(example).tensors()
        if not isinstance(bound, Derived) or len(inputs) != 1 or not inputs[0].is_floating_point():
            return
        reached = steepest_found(bound.model, inputs[0][:_SOUGHT_FROM], bound.score_limit(), bound.sensitivities())
    if not reached <= 1 + 1e-5:
        raise PrivacyRefusal(
            f"an example was found whose gradient is {reached:.4g} times its bound: a module of the model states a "
            "bound of itself that does not hold. Do not train with this model"
        )


def _doubled(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


@contextmanager
def _in_double(model: nn.Module) -> Iterator[None]:
    """The same parameters and buffers in double precision; afterwards they hold their own bits again."""
    parameters = [(p, p.data) for p in model.parameters()]
    buffers = [(part, name, b) for part in model.modules() for name, b in part._buffers.items() if b is not None]
    try:
        for p, value in parameters:
            p.data = _doubled(value)
        for part, name, value in buffers:
            part._buffers[name] = _doubled(value)
        yield
    finally:
        for p, value in parameters:
            p.data = value
        for part, name, value in buffers:
            part._buffers[name] = value


def _norm(part: BoundedSum) -> float:
    return float(torch.stack([g.double().norm() for g in part.grads]).norm())


def _joint_vector(sums: Sequence[BoundedSum]) -> Tensor:
    """All sums in units of their noise at multiplier one: an example that reaches every bound moves it by one."""
    scales = [math.sqrt(share) / part.bound for part, share in zip(sums, shares_of(sums), strict=True)]
    return torch.cat(
        [g.double().flatten() * scale for part, scale in zip(sums, scales, strict=True) for g in part.grads]
    )


def _tolerance(model: nn.Module) -> float:
    dtypes = {p.dtype for p in model.parameters()}
    if any(torch.is_autocast_enabled(device) for device in {p.device.type for p in model.parameters()}):
        return _TOLERANCE_LOW_PRECISION
    return max(_TOLERANCE.get(dtype, _TOLERANCE_LOW_PRECISION) for dtype in dtypes)


def _public_batch(example: Call) -> Call:
    """Random inputs of the example's shapes and types, with a batch of eight on the first axis."""
    tensors = example.tensors()
    b = tensors[0].shape[0] if tensors and tensors[0].dim() else 0

    def public(tensor: Tensor) -> Tensor:
        batched = tensor.dim() and tensor.shape[0] == b
        shape = (_EXAMPLES if batched else tensor.shape[0], *tensor.shape[1:]) if tensor.dim() else tensor.shape
        with torch._C.DisableTorchFunction():  # whatever mode the call came in, such as one that stills randomness
            if tensor.dtype.is_floating_point:
                return torch.randn(shape, dtype=tensor.dtype, device=tensor.device)
            # Zero and one are the integers that every vocabulary, mask and list of classes has.
            return torch.randint(0, 2, shape, device=tensor.device).to(tensor.dtype)

    return example.map(public)


def _batched(batch: Call, change: Callable[[Tensor], Tensor]) -> Call:
    """The batch with the tensors changed that hold its examples."""
    return batch.map(lambda tensor: change(tensor) if tensor.dim() and tensor.shape[0] == _EXAMPLES else tensor)


def _row(batch: Call, i: int) -> Call:
    """One example of a batch as a batch of one."""
    return _batched(batch, lambda tensor: tensor[i : i + 1])


class _Projection:
    """A loss for a model whose loss is not known yet: each example's outputs times random numbers of its own.

    They stand for the example's label: a model that hands one example's output to another cannot hide.
    """

    def __init__(self) -> None:
        self._directions: dict[int, Tensor] = {}

    def __call__(self, output: object, examples: Sequence[int]) -> Tensor:
        """One loss for each of these examples, whose outputs these are."""
        b = len(examples)
        leaves = [leaf for leaf in tree_flatten(_plain(output))[0] if isinstance(leaf, Tensor)]
        batched = [leaf for leaf in leaves if leaf.requires_grad and leaf.dim() and leaf.shape[0] % b == 0]
        if not batched:
            raise PrivacyRefusal(
                "the model returns no tensor with the examples on its first axis, so it cannot be checked; "
                "return one row per example"
            )
        rows = [leaf.reshape(b, -1) for leaf in batched if leaf.numel()]
        return torch.stack([(row * self._directions_of(k, row)[examples]).sum(1) for k, row in enumerate(rows)]).sum(0)

    def _directions_of(self, k: int, rows: Tensor) -> Tensor:
        if k not in self._directions or self._directions[k].shape[1] != rows.shape[1]:
            with torch._C.DisableTorchFunction():
                self._directions[k] = torch.randn(_EXAMPLES, rows.shape[1], dtype=rows.dtype, device=rows.device)
        return self._directions[k]


def _plain(output: object) -> object:
    """Output classes that are dictionaries, as plain dictionaries."""
    return dict(output) if isinstance(output, Mapping) else output


def _sums_of(
    bound: GradientBound, batch: Call, examples: Sequence[int], loss: _Projection, scale: float
) -> list[BoundedSum]:
    """What the bound hands on for this batch."""
    with torch.enable_grad():
        with Stilled():
            output = bound.model(*batch.args, **batch.kwargs)
        losses = loss(output, examples) * scale
    with stilled_again(bound.model):
        bound.backward(losses)
    return bound.take()


def _singleton(bound: GradientBound, batch: Call, i: int, loss: _Projection, scale: float) -> list[BoundedSum]:
    return _sums_of(bound, _row(batch, i), [i], loss, scale)


def _together(bound: GradientBound, batch: Call, loss: _Projection, scale: float) -> list[BoundedSum]:
    try:
        return _sums_of(bound, batch, range(_EXAMPLES), loss, scale)
    except MissingRule as error:
        # Each example alone has passed, so what stands in the way is what they share.
        raise PrivacyRefusal(_first_mixing_module(bound.model, batch) or f"{_MIXING_UNSEEN}\n{error}") from error


def _scale_to_bound(bound: GradientBound, batch: Call, loss: _Projection, raw: Sequence[list[BoundedSum]]) -> float:
    """A factor on the losses that puts half of the examples above the bound, where clipping shows, and none on it."""
    scale, reached = 1.0, [_reached(single) for single in raw]
    while max(reached) > 0.99 and scale > 1e-30:
        scale *= 1e-4
        reached = [_reached(_singleton(bound, batch, i, loss, scale)) for i in range(_EXAMPLES)]
    reached = sorted(part for part in reached if part)
    if not reached:
        return 1.0
    middle = math.sqrt(reached[max(len(reached) // 2 - 1, 0)] * reached[len(reached) // 2])
    return scale * 1.01 / middle


def _reached(sums: Sequence[BoundedSum]) -> float:
    """How near a gradient of these comes to its bound."""
    return max(_norm(part) / part.bound for part in sums if part.name == "gradient")


def _refuse_remembering(model: nn.Module, example: Call) -> None:
    """The state that is published with the weights must not know what came by."""
    left, other, fewer = (
        _state_after(model, example, seed, count)
        for seed, count in ((_SEED, _EXAMPLES), (_SEED + 1, _EXAMPLES), (_SEED, _EXAMPLES - 1))
    )
    if told := [
        name
        for name in sorted(left | other | fewer)
        if not all(_same(left.get(name), state.get(name)) for state in (other, fewer))
    ]:
        raise PrivacyRefusal(
            f"the model keeps something of its inputs in {', '.join(told)}, which would be saved with the weights "
            "without any noise. Freeze what writes it (eval mode), or take it out of the model's state "
            "(register_buffer(..., persistent=False))"
        )


def _state_after(model: nn.Module, example: Call, seed: int, count: int) -> dict[str, Any]:
    """The state of the model after one call with the first of the public inputs that this seed draws."""
    with torch.random.fork_rng(), _buffers_kept(model), torch.no_grad():
        torch.manual_seed(seed)
        call = _batched(_public_batch(example), lambda tensor: tensor[:count])
        torch.manual_seed(seed - seed % 10)  # the model's own random numbers are the same for both
        model(*call.args, **call.kwargs)
        trained = dict(model.named_parameters())
        return {name: deepcopy(value) for name, value in model.state_dict().items() if name not in trained}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[Callable[[], None]]:
    """What puts the model's buffers back to what they are now; it is called at the end."""
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    def put_back() -> None:
        with torch.no_grad():
            for module, name, buffer, value in before:
                module._buffers[name] = buffer.copy_(value)

    try:
        yield put_back
    finally:
        put_back()


@contextmanager
def _before_calls(model: nn.Module, do: Callable[[], None]) -> Iterator[None]:
    """Not before the repetition of a call by ``torch.func``, which may change nothing."""

    def first(module: nn.Module, args: Any) -> None:
        if not any(map(is_functorch_wrapped_tensor, module.parameters())):
            do()

    handle = model.register_forward_pre_hook(first, prepend=True)
    try:
        yield
    finally:
        handle.remove()


@dataclass(frozen=True)
class Check:
    """One of the things that a bound is checked for on a model; ``run`` raises ``PrivacyRefusal`` where it fails."""

    name: str
    run: Callable[[GradientBound, Call], None]


CHECKS = (
    Check("no module normalises over the batch", lambda bound, example: refuse_mixing_modules(bound.model)),
    Check("one example stays within the bound, a batch is the sum of its examples", _refuse_coupling),
    Check("no example is steeper than its layers allow", _refuse_steeper),
    Check("nothing of the inputs is kept", lambda bound, example: _refuse_remembering(bound.model, example)),
)


_MIXING_UNSEEN = (
    "some operation mixes examples in its gradient, or holds them on another axis than the first. "
    "Every operation must look at one example at a time, and inputs and outputs hold the examples on the first axis."
)


def _first_mixing_module(model: nn.Module, batch: Call) -> str:
    """What to say of the innermost module, first in order, whose output for an example changes when the others leave.

    Its inputs do not: a module whose inputs change as well got that from elsewhere. Empty where no output shows it.
    """
    together = _answers(model, batch, _EXAMPLES)
    alone = [_answers(model, _row(batch, i), 1) for i in range(_EXAMPLES)]
    for whole, *singles in zip(together, *alone, strict=False):
        pairs = [(whole.of(i), single.of(0)) for i, single in enumerate(singles)]
        if any(_differ(one.outputs, other.outputs) and not _differ(one.inputs, other.inputs) for one, other in pairs):
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


def _differ(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return any(
        a.shape == b.shape and not torch.allclose(a.double(), b.double(), rtol=1e-2, atol=1e-4, equal_nan=True)
        for a, b in zip(one, other, strict=False)
    )


def _answers(model: nn.Module, batch: Call, b: int) -> list[_Answer]:
    """What the modules answer for a batch of b examples, in the order of their answers."""
    seen: list[_Answer] = []

    def by_example(values: Any) -> tuple[Tensor, ...]:
        leaves = [leaf for leaf in tree_flatten(_plain(values))[0] if isinstance(leaf, Tensor) and leaf.dim()]
        return tuple(t.detach().unflatten(0, (b, -1)).clone() for t in leaves if t.shape[0] and t.shape[0] % b == 0)

    def hook(name: str, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        seen.append(_Answer(name, type(module).__name__, by_example((args, kwargs)), by_example(output)))

    handles = [
        module.register_forward_hook(partial(hook, name), with_kwargs=True) for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad(), Stilled():
            model(*batch.args, **batch.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return seen
