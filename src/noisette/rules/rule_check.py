"""Rules from outside this package are compared with autograd before their gradients are used."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from noisette.core.forms import ExampleGradients, Examples
from noisette.core.recording import Use
from noisette.core.registry import operation_name
from noisette.errors import PrivacyError

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
# Errors of a gradient are relative to its norm, or to this share of the largest norm if that is more, because the
# rounding errors of small gradients come from larger terms.
_SMALL = 1e-3
# Larger values are clamped for the comparison, which is about the rule and not about the data.
_LARGE = 1e3

_AGREED: set[Hashable] = set()


def check_custom_rule(
    rule: Callable[..., Any], examples: Examples, dy: Any, use: Use, operand: str, arguments: Mapping[str, Any]
) -> None:
    """Compare a rule that is not noisette's own with autograd, on the first batch of each shape.

    The operation is repeated with ``arguments``, by the names that the rule gives them, and each example's gradient is
    computed with the output gradients of all others set to zero.

    Raises:
        PrivacyError: gradients, norms or weighted sum of the rule are not those of autograd.
    """
    key = _key(rule, examples, operand, arguments)
    largest = max(float(part.abs().nan_to_num(0, 0, 0).max()) for part in _as_list(dy) if part is not None)
    if key in _AGREED or largest == 0:
        return
    dy = tree_map(lambda part: part if part is None else _clamped(part / largest), dy)
    trained = [any(item is weight for weight in use.weights) for item in _as_list(arguments[operand])]
    clamped = {name: tree_map(_clamped, value) for name, value in arguments.items()}
    truths = _by_autograd(examples, dy, use, operand, clamped, trained)
    forms = [
        form for form, is_weight in zip(_as_list(rule(examples, dy, **clamped)), trained, strict=True) if is_weight
    ]
    for truth, form in zip(truths, forms, strict=True):
        error = _relative_error(form, truth)
        if not error <= _TOLERANCE[truth.dtype]:
            name, operation = f"{rule.__module__}.{operation_name(rule)}", operation_name(use.operation)
            raise PrivacyError(
                f"the rule {name} for {operand} of {operation} differs from autograd by {error:.3g} of the gradient's "
                "norm, so clipping by it would not bound the gradient; correct it, or use "
                "engine=noisette.engines.MultiLoss(), which needs no rules"
            )
    if examples.count > 1:  # a rule that mixes examples is correct for one
        _AGREED.add(key)


def _as_list(value: Any) -> Sequence[Any]:
    return value if type(value) in (list, tuple) else [value]


def _clamped(value: Any) -> Any:
    """A tensor in single precision or better, without non-finite and huge values.

    Otherwise rounding, or one non-finite example, could conceal an error of the rule or look like one.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        precise = value.detach() if value.dtype is torch.float64 else value.detach().float()
        return precise.nan_to_num(0, 0, 0).clamp(-_LARGE, _LARGE)
    return value


def _key(rule: Callable[..., Any], examples: Examples, operand: str, arguments: Mapping[str, Any]) -> Hashable:
    """The rule and the shapes of a call, independent of the number of examples."""

    def described(value: Any) -> Hashable:
        if isinstance(value, Tensor):
            return value.dtype, tuple(0 if size == examples.count else size for size in value.shape)
        return repr(value)

    shapes = tuple((name, *map(described, tree_flatten(value)[0])) for name, value in arguments.items())
    return rule, operand, examples.axis, examples.inner, shapes


def _by_autograd(
    examples: Examples, dy: Any, use: Use, operand: str, arguments: Mapping[str, Any], trained: Sequence[bool]
) -> list[Tensor]:
    """The gradients (b, *shape) of those tensors of the operand that are ``trained``."""
    items = [
        item.detach().requires_grad_() if is_weight else item
        for item, is_weight in zip(_as_list(arguments[operand]), trained, strict=True)
    ]
    leaves = [item for item, is_weight in zip(items, trained, strict=True) if is_weight]
    several = type(arguments[operand]) in (list, tuple)
    values = dict(arguments) | {operand: type(arguments[operand])(items) if several else items[0]}
    args = list(values.values())[: len(use.args)]
    with torch.enable_grad():
        output = use.operation(*args, **{name: values[name] for name in use.kwargs})
    reached = [(out, part) for out, part in zip(_as_list(output), _as_list(dy), strict=False) if part is not None]
    rows: list[tuple[Tensor, ...]] = []
    for i in range(examples.count):
        cotangents = []
        for out, part in reached:
            alone = torch.zeros(part.shape, dtype=out.dtype, device=out.device)
            examples.first(alone)[i] = examples.first(part)[i].to(out.dtype)
            cotangents.append(alone)
        outputs = [out for out, _ in reached]
        rows.append(
            torch.autograd.grad(
                outputs, leaves, cotangents, retain_graph=True, allow_unused=True, materialize_grads=True
            )
        )
    return [torch.stack(gradients) for gradients in zip(*rows, strict=True)]


def _relative_error(form: ExampleGradients, truth: Tensor) -> float:
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
