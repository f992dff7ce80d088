"""Rules from outside this package, which are compared with autograd before their gradients are used."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from noisette.core import forms
from noisette.core.forms import Operation, Rule, find_rule, operation_name
from noisette.core.vmap import is_wrapped, physical
from noisette.errors import PrivacyError

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
# Errors of a gradient are relative to its norm, or to this share of the largest norm if that is more, because the
# rounding errors of small gradients come from larger terms.
_SMALL = 1e-3
_LARGE = 1e3  # larger values are clamped for the comparison, which is about the rule and not about the data

_AGREED: set[Hashable] = set()


def rule(*operations: Operation, operand: str = "weight") -> Callable[[Rule], Rule]:
    """Register a rule of your own: it gives each example's gradient of one operand of these operations.

    It is called as ``rule(examples, dy, ...)``: the number of examples, the gradient at the operation's output, and the
    operation's own arguments under its own names. ``dy`` and all data among the arguments have the examples on a first
    axis, in front of the axes that they have in the loss of one example. It returns one of the forms of
    ``noisette.core.forms``, or raises ValueError for a call to which it does not apply.

    The operation itself is called in the same way, once for all examples: it must treat the rows of the first axis
    apart, and return one tensor. Where a weight among its arguments has no rule, it runs in ``vmap`` instead.

    Guarantee: in the first batch of each shape with two examples or more, the operation's output is compared with that
    for each example alone, and the rule's gradients, norms and weighted sum with autograd. A rule that is right there
    and wrong elsewhere is not seen.

    Raises:
        ValueError: the operand has a rule already, or the rule does not take it.
    """

    def register(function: Rule) -> Rule:
        for operation in operations:
            forms.rule(operation, operand=operand)(function)
            if operation not in forms.PHYSICAL:
                forms.leaves(operation)(_for_all_examples)
        return function

    return register


def _for_all_examples(run: forms.Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The operation, called once for all examples; refused if that gives something else than each example alone."""
    values, structure = tree_flatten((args, dict(kwargs)))
    batched = [isinstance(value, Tensor) and is_wrapped(value) for value in values]
    values = [physical(value) if of_examples else value for value, of_examples in zip(values, batched, strict=True)]
    given, given_by_name = tree_unflatten(values, structure)
    arguments = forms.named_arguments(func, given, given_by_name)
    weights = [k for k, x in enumerate(values) if isinstance(x, Tensor) and x.requires_grad and not batched[k]]
    operands = {name: k for k in weights for name, value in arguments.items() if value is values[k]}
    if len(operands) < len(weights) or not all(find_rule(func, name) for name in operands):
        return NotImplemented
    for name, place in operands.items():
        key = (find_rule(func, name), func, name, _shapes(b, arguments))
        if key in _AGREED:
            continue
        try:
            _compare(func, name, place, values, batched, structure, b)
        except ValueError:  # the rule does not apply to this call
            return NotImplemented
        if b > 1:  # what mixes examples is correct for one
            _AGREED.add(key)
    return run(func, given, given_by_name)


def _shapes(b: int, arguments: Mapping[str, Any]) -> Hashable:
    def described(value: Any) -> Hashable:
        if isinstance(value, Tensor):
            return value.dtype, tuple(0 if size == b else size for size in value.shape)
        return repr(value)

    return tuple((name, *map(described, tree_flatten(value)[0])) for name, value in arguments.items())


def _compare(
    func: Operation, operand: str, place: int, values: Sequence[Any], batched: Sequence[bool], tree: TreeSpec, b: int
) -> None:
    """Compare an operation and the rule of an operand with calls for each example alone and autograd."""
    rule = find_rule(func, operand)
    assert rule is not None
    described = f"{operation_name(func)}, for which noisette.rule has registered a rule,"
    with torch._C.DisableTorchFunction(), torch.enable_grad():  # nothing here is a part of the loss
        values = [_clamped(value) for value in values]
        weight = values[place] = values[place].requires_grad_()
        given, by_name = tree_unflatten(values, tree)
        output = func(*given, **by_name)
        if not isinstance(output, Tensor) or len(output) != b:
            raise PrivacyError(f"{described} must return one tensor with the examples on its first axis")
        # Not the gradient of the losses, which may be zero where the rule is wrong.
        dy = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
        alone: list[Tensor] = []
        truth: list[Tensor] = []
        for i in range(b):
            of_one = [value[i] if has else value for value, has in zip(values, batched, strict=True)]
            given_of_one, by_name_of_one = tree_unflatten(of_one, tree)
            alone.append(func(*given_of_one, **by_name_of_one))
            truth += torch.autograd.grad(alone[-1], weight, dy[i], materialize_grads=True)
        tolerance = _TOLERANCE[weight.dtype]
        scale = float(output.detach().abs().max()) if output.numel() else 0.0
        if not torch.allclose(output, torch.stack(alone), rtol=0, atol=tolerance * scale):
            raise PrivacyError(
                f"{described} gives another output for all examples together than for each alone: it must keep "
                "the rows of the first axis apart"
            )
        name = f"{rule.__module__}.{operation_name(rule)}"
        with torch.no_grad():
            form = rule(forms.Examples(b), dy, **forms.named_arguments(func, given, by_name))
            if (shape := form.explicit().shape) != (b, *weight.shape):
                raise PrivacyError(
                    f"the rule {name} gives gradients of shape {tuple(shape)} for {operand} of shape "
                    f"{tuple(weight.shape)} and {b} examples; sum over every axis but that of the examples"
                )
            error = _relative_error(form, torch.stack(truth))
    if not error <= tolerance:
        raise PrivacyError(
            f"the rule {name} for {operand} of {operation_name(func)} differs from "
            f"autograd by {error:.3g} of the gradient's norm, so clipping by it would not bound the gradient; correct "
            "it, or leave it out: operations without a rule run in torch.func.vmap"
        )


def _clamped(value: Any) -> Any:
    """A tensor in single precision or better, without non-finite and huge values, which could conceal an error."""
    if isinstance(value, Tensor) and value.is_floating_point():
        precise = value.detach() if value.dtype is torch.float64 else value.detach().float()
        return precise.nan_to_num(0, 0, 0).clamp(-_LARGE, _LARGE)
    return value


def _relative_error(form: forms.ExampleGradients, truth: Tensor) -> float:
    """The largest relative error of a form's explicit gradients, norms and weighted sum; ``truth`` is (b, *shape)."""
    b = truth.shape[0]
    weights = torch.linspace(1, 2, b, dtype=truth.dtype, device=truth.device)
    rows = truth.double().reshape(b, truth[0].numel())
    norms = rows.norm(dim=1)
    unit = norms.clamp(min=max(_SMALL * float(norms.max()), torch.finfo(torch.float32).tiny))
    explicit = form.explicit().double().reshape(rows.shape)
    total = form.weighted_sum(weights).double().reshape(rows.shape[1:])
    errors = [
        ((explicit - rows).norm(dim=1) / unit).max(),
        ((form.squared_norms().double().clamp(min=0).sqrt() - norms).abs() / unit).max(),
        (total - weights.double() @ rows).norm() / (weights.double() * unit).sum(),
    ]
    return float(torch.stack(errors).max())
