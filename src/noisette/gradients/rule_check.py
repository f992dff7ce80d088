"""Rules from outside this package are held against autograd before they are relied on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from noisette.errors import PrivacyError
from noisette.gradients.rules import ExampleGradients, Examples, operation_name
from noisette.gradients.tape import Use

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
# Gradients smaller than this part of the largest are compared in units of it: rounding is not theirs alone.
_SMALL = 1e-3
# Values beyond this are cut down for the comparison, which is about the rule and not about the data.
_LARGE = 1e3

_AGREED: set[Hashable] = set()


def check_custom_rule(
    rule: Callable[..., Any], examples: Examples, dy: Any, use: Use, operand: str, arguments: Mapping[str, Any]
) -> None:
    """Compare a rule that is not noisette's own with autograd, on its first batch of a shape.

    The operation is repeated, and each example's gradient taken with the output gradients of all others silent.

    Raises:
        PrivacyError: gradients, norms or weighted sum of the rule are not those of autograd.
    """
    if getattr(rule, "__module__", "").startswith("noisette."):
        return
    key = _key(rule, examples, operand, arguments)
    largest = max(float(part.abs().nan_to_num(0, 0, 0).max()) for part in _as_list(dy) if part is not None)
    if key in _AGREED or largest == 0:
        return
    dy = tree_map(lambda part: part if part is None else _tame(part / largest), dy)
    trained = [any(item is weight for weight in use.weights) for item in _as_list(arguments[operand])]
    tamed = {name: tree_map(_tame, value) for name, value in arguments.items()}
    truths = _by_autograd(examples, dy, use, operand, tamed, trained)
    forms = [form for form, asked in zip(_as_list(rule(examples, dy, **tamed)), trained, strict=True) if asked]
    for truth, form in zip(truths, forms, strict=True):
        error = _relative_error(form, truth)
        if not error <= _TOLERANCE[truth.dtype]:
            name, operation = f"{rule.__module__}.{operation_name(rule)}", operation_name(use.operation)
            raise PrivacyError(
                f"the rule {name} for {operand} of {operation} differs from autograd by {error:.3g} of the gradient's "
                "norm, so what it clips would not be what it adds up; correct it, or use "
                "engine=noisette.engines.MultiLoss(), which needs no rules"
            )
    if examples.count > 1:  # one example alone does not show what a rule does to several
        _AGREED.add(key)


def _as_list(value: Any) -> Sequence[Any]:
    return value if type(value) in (list, tuple) else [value]


def _tame(value: Any) -> Any:
    """A copy in single precision at least, without infinities and values near them.

    So neither rounding nor one bad example hides a fault of the rule, or makes up one.
    """
    if isinstance(value, Tensor) and value.is_floating_point():
        precise = value.detach() if value.dtype is torch.float64 else value.detach().float()
        return precise.nan_to_num(0, 0, 0).clamp(-_LARGE, _LARGE)
    return value


def _key(rule: Callable[..., Any], examples: Examples, operand: str, arguments: Mapping[str, Any]) -> Hashable:
    """The shapes of a call, whatever the number of its examples."""

    def described(value: Any) -> Hashable:
        if isinstance(value, Tensor):
            return value.dtype, tuple(0 if size == examples.count else size for size in value.shape)
        return repr(value)

    shapes = tuple((name, *map(described, tree_flatten(value)[0])) for name, value in arguments.items())
    return rule, operand, examples.axis, examples.inner, shapes


def _by_autograd(
    examples: Examples,
    dy: Any,
    use: Use,
    operand: str,
    arguments: Mapping[str, Any],
    trained: Sequence[bool],
) -> list[Tensor]:
    """The gradients (b, *shape) of each trained tensor of the operand."""
    items = [
        item.detach().requires_grad_() if asked else item
        for item, asked in zip(_as_list(arguments[operand]), trained, strict=True)
    ]
    leaves = [item for item, asked in zip(items, trained, strict=True) if asked]
    several = type(arguments[operand]) in (list, tuple)
    values = dict(arguments) | {operand: type(arguments[operand])(items) if several else items[0]}
    args = list(values.values())[: len(use.args)]
    with torch.enable_grad():
        output = use.operation(*args, **{name: values[name] for name in use.kwargs})
    reached = [(out, part) for out, part in zip(_as_list(output), _as_list(dy), strict=False) if part is not None]
    rows: list[tuple[Tensor, ...]] = []
    for i in range(examples.count):
        silent = []
        for out, part in reached:
            alone = torch.zeros(part.shape, dtype=out.dtype, device=out.device)
            examples.first(alone)[i] = examples.first(part)[i].to(out.dtype)
            silent.append(alone)
        rows.append(
            torch.autograd.grad(
                [out for out, _ in reached],
                leaves,
                silent,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
        )
    return [torch.stack(gradients) for gradients in zip(*rows, strict=True)]


def _relative_error(form: ExampleGradients, truth: Tensor) -> float:
    """The largest error of the three answers of a form, in units of the norm of what it should be."""
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
