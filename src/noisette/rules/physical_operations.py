"""Operations that leave ``vmap``: they run once on the tensors of all examples. ``vmap`` is slow or fails for them.

Each function here gets the arguments of an operation inside of ``vmap``, where what depends on examples is batched. It
puts the examples where the operation treats its rows separately anyway (the rows of a linear layer, the images of a
convolution, the sequences of a recurrence), runs the operation on physical tensors, and wraps the result again. It
returns ``NotImplemented`` where that is not certain; then the operation goes through ``vmap``.

Guarantee: this list is trusted; ``tests/rules/test_physical_operations.py`` checks that entries keep examples apart.

Axes: b example, n the batch axis inside the loss of one example, usually of length 1.
"""

from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from noisette.core.forms import OPERANDS, Operation, Run, leaves
from noisette.core.vmap import is_wrapped, physical
from noisette.errors import PrivacyError, warn
from noisette.rules.normalization import normalise_channels

F = torch.nn.functional


def _named(names: Sequence[str], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _only_batched(arguments: Mapping[str, Any], name: str) -> bool:
    """Whether the argument of this name is the only one that depends on examples."""
    for key, value in arguments.items():
        parts = value if type(value) in (list, tuple) else (value,)
        if any(isinstance(part, Tensor) and is_wrapped(part) for part in parts) != (key == name):
            return False
    return True


@leaves(F.linear, F.layer_norm, F.rms_norm, F.embedding)
def row_by_row(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Operations on the last axes of ``input``, whatever its other axes are: the examples are one more of these."""
    arguments = _named(OPERANDS[func], args, kwargs)
    if not _only_batched(arguments, "input") or arguments.get("scale_grad_by_freq"):
        return NotImplemented
    if arguments.get("max_norm") is not None:
        raise PrivacyError("max_norm rescales rows that are looked up and saves them without noise; leave max_norm out")
    input = physical(arguments["input"])
    if func is F.linear:
        bias = arguments.get("bias")
        if bias is not None and not 1 == bias.dim() < input.dim():
            return NotImplemented  # the first axis of the bias must not meet that of the examples
        if input.dim() == 3 and input.shape[1] == 1:  # the rule is quicker without the axis of one
            return run(func, (), arguments | {"input": input.squeeze(1)}).unsqueeze(1)
    dense = {"sparse": False} if func is F.embedding else {}  # noise is added to every row of the table
    return _no_view(run(func, (), arguments | {"input": input} | dense))


def _no_view(output: Tensor) -> Tensor:
    """The output as autograd sees one of its own: writing into an inner view would lead past the recorded edge."""
    return torch.ops.aten._unsafe_view(output, output.shape) if output._is_view() else output


@leaves(torch.matmul, torch.mm, torch.mv, torch.sparse.mm, Tensor.matmul, Tensor.mm, Tensor.mv)
def product(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """x @ W with one matrix or vector W for all examples, or A @ x with one sparse matrix A, as of a public graph."""
    arguments = _named(OPERANDS[torch.matmul], args, kwargs)
    left, right = arguments.get("input"), arguments.get("other")
    if len(arguments) != 2 or left is None or right is None or right.dim() > 2:
        return NotImplemented
    if left.layout is not torch.strided and _only_batched(arguments, "other"):
        columns = physical(right).movedim(0, -1)
        return run(torch.mm, (left, columns.flatten(1)), {}).unflatten(1, columns.shape[1:]).movedim(-1, 0)
    return run(torch.matmul, (physical(left), right), {}) if _only_batched(arguments, "input") else NotImplemented


@leaves(torch._grouped_mm, "transformers::grouped_mm_fallback")  # pyright: ignore[reportPrivateImportUsage]
def product_by_expert(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Rows (s, i), up to its offset those of each expert, times its matrix (i, o); examples padded to the fullest."""
    given = {name: x for name, x in _named(("rows", "weight", "offs"), args, kwargs).items() if x is not None}
    if given.keys() != {"rows", "weight", "offs"} or is_wrapped(given["weight"]) or given["rows"].dim() != 2:
        return NotImplemented
    rows, ends, weight = _one_for_each(given["rows"], b), _one_for_each(given["offs"], b).long(), given["weight"]
    begins, numbers = F.pad(ends, (1, -1)), torch.arange(rows.shape[1], device=rows.device)
    most = (ends - begins).amax(0).tolist()
    if not any(most):
        return NotImplemented
    # Rows of other experts that pad come back to nobody, so that no gradient arrives there.
    taken = torch.cat([begins[:, e : e + 1] + numbers[:n] for e, n in enumerate(most)], 1).clamp(max=rows.shape[1] - 1)
    parts = rows.take_along_dim(taken.unsqueeze(2), 1).split(most, 1)
    used = [(x, run(Tensor.__getitem__, (weight, e), {})) for e, x in enumerate(parts) if most[e]]
    products = torch.cat([run(torch.matmul, pair, {}) for pair in used], 1)
    experts = torch.searchsorted(ends, numbers.repeat(b, 1), right=True).clamp(max=len(most) - 1)
    moved = torch.tensor([0, *most[:-1]], device=rows.device).cumsum(0) - begins
    places = (numbers + moved.gather(1, experts)).clamp(max=sum(most) - 1)
    return products.take_along_dim(places.unsqueeze(2), 1)


@leaves(torch.einsum)
def einsum(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """With one more letter for the examples, in front of each operand that depends on them."""
    equation, *operands = args
    operands = operands[0] if type(operands[0]) in (list, tuple) else operands
    if not isinstance(equation, str) or "->" not in equation or not all(isinstance(x, Tensor) for x in operands):
        return NotImplemented
    letter = next(letter for letter in ascii_letters if letter not in equation)
    factors, result = equation.split("->")
    pairs = zip(factors.split(","), operands, strict=True)
    terms = [f"{letter}{term.strip()}" if is_wrapped(x) else term for term, x in pairs]
    inner = [physical(operand) if is_wrapped(operand) else operand for operand in operands]
    return _no_view(run(func, (f"{','.join(terms)}->{letter}{result.strip()}", *inner), {}))


def _merged(run: Run, b: int, func: Operation, arguments: dict[str, Any]) -> Any:
    """The operation with ``input`` (b, n, ...) as (b n, ...), and its output in the same way."""
    input = physical(arguments["input"])
    n = input.shape[1]
    return _no_view(run(func, (), arguments | {"input": input.flatten(0, 1)})).unflatten(0, (b, n))


@leaves(F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
def convolution(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Images (n, c, ...), or one image (c, ...), and one kernel for all examples."""
    arguments = _named(OPERANDS[func], args, kwargs)
    if not _only_batched(arguments, "input"):
        return NotImplemented
    input, axes = arguments["input"], arguments["weight"].dim()
    if input.dim() == axes - 1:
        return run(func, (), arguments | {"input": physical(input)})
    if axes == 5 and input.shape[0] > 1:
        return NotImplemented  # the rule takes one volume of each example
    return _merged(run, b, func, arguments)


@leaves(F.group_norm, F.instance_norm, normalise_channels, F.batch_norm)
def normalization(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Norms of (n, c, ...) that treat the first axis as separate examples; running statistics stay with ``vmap``.

    Batch norm does so where its statistics are fixed.
    """
    arguments = _named(OPERANDS[func], args, kwargs)
    has_statistics = any(arguments.get(name) is not None for name in ("running_mean", "running_var"))
    is_separate = has_statistics == (func is F.batch_norm) and not arguments.get("training", False)
    if not is_separate or not _only_batched(arguments, "input") or arguments["input"].dim() < 2:
        return NotImplemented
    return _merged(run, b, func, arguments)


_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")


@leaves(F.scaled_dot_product_attention, data=(0, 1, 2, 3, *_ATTENTION[:4]))
def attention(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Attention within each (head, position, feature), with or without n in front, and any mask that broadcasts."""
    arguments = _named(_ATTENTION, args, kwargs)
    axes, mask = arguments["query"].dim(), arguments.get("attn_mask")
    inputs = {name: arguments[name] for name in ("query", "key", "value")}
    sizes = {tensor.shape[0] for tensor in inputs.values()} if axes == 4 else {1}
    fits = len({tensor.dim() for tensor in inputs.values()}) == len(sizes) == 1 and 2 <= axes <= 4
    if not fits or (mask is not None and mask.dim() > axes):
        return NotImplemented
    n = sizes.pop()
    rows = {name: _one_for_each(tensor, b) for name, tensor in inputs.items()}
    if mask is not None and (axes == 4 or is_wrapped(mask)):
        mask = _one_for_each(mask, b)
        mask = mask.view(b, *[1] * (axes + 1 - mask.dim()), *mask.shape[1:])
        mask = mask.expand(b, n, *mask.shape[2:]).flatten(0, 1) if axes == 4 else mask
    if axes == 4:
        rows = {name: tensor.flatten(0, 1) for name, tensor in rows.items()}
    output = run(func, (), arguments | rows | {"attn_mask": mask})
    return output.unflatten(0, (b, n)) if axes == 4 else output


def _one_for_each(tensor: Tensor, b: int) -> Tensor:
    """The physical tensor; a tensor that depends on no example once for each of them."""
    return physical(tensor) if is_wrapped(tensor) else tensor.expand(b, *tensor.shape)


@leaves(torch.rnn_tanh, torch.rnn_relu, torch.lstm, torch.gru, data=(0, 1))
def recurrence(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Sequences (n, t, features) or (t, n, features) and states (layers, n, features) as those of b n sequences."""
    if kwargs or not isinstance(args[3], bool) or any(is_wrapped(weight) for weight in args[2]):
        return NotImplemented  # packed sequences, or weights that depend on examples
    input, hx, *rest = args
    axis = 0 if rest[-1] else 1  # batch_first
    states: Sequence[Tensor] = (hx,) if isinstance(hx, Tensor) else hx
    n = input.shape[axis]
    merged = [_merge_at(_one_for_each(state, b), 1) for state in states]
    sequences = _merge_at(_one_for_each(input, b), axis)
    output, *final = run(func, (sequences, merged[0] if isinstance(hx, Tensor) else merged, *rest), {})
    # As a recurrence of one example gives it: code may call ``view``.
    return (_split_at(output, axis, b, n).contiguous(), *[_split_at(state, 1, b, n).contiguous() for state in final])


def _merge_at(tensor: Tensor, axis: int) -> Tensor:
    """(b, ..., n, ...) with n on this axis of one example's tensor, as (..., b n, ...)."""
    return tensor.movedim(0, axis).flatten(axis, axis + 1)


def _split_at(tensor: Tensor, axis: int, b: int, n: int) -> Tensor:
    return tensor.unflatten(axis, (b, n)).movedim(axis, 0)


_BY_NUMBER = {
    F.dropout: ("input", "p", "training", "inplace"),
    F.rrelu: ("input", "lower", "upper", "training", "inplace"),
}


@leaves(*_BY_NUMBER)
def number_by_number(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Each number is dropped, or has a slope, by a random number of its own, wherever the examples are."""
    arguments = _named(_BY_NUMBER[func], args, kwargs)
    if arguments.get("inplace") or not is_wrapped(arguments["input"]):
        return NotImplemented  # the result must be the same object, or this is a weight of another model
    return run(func, (), arguments | {"input": physical(arguments["input"])})


_CROSS_ENTROPY = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_WEIGHTS_CANCEL = (
    "class weights have no effect in {}(..., weight=...) with the mean of one example's loss, which divides by the "
    'weight of its class; give reduction="sum"'
)


@leaves(F.cross_entropy, F.nll_loss)
def class_loss(run: Run, b: int, func: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Losses of scores (n, classes) and labels (n,) or probabilities (n, classes), reduced over n in each example.

    The mean goes over the labels that are not ignored, each with the weight of its class; without any it is not a
    number, as outside of ``vmap``. Of one label the mean divides by the weight it was multiplied by, which is said.
    """
    arguments = _named(_CROSS_ENTROPY, args, kwargs)
    input, target, weight = arguments["input"], arguments["target"], arguments.get("weight")
    is_old = any(arguments.get(name) is not None for name in ("size_average", "reduce"))
    if is_old or (weight is not None and (is_wrapped(weight) or weight.requires_grad)):
        return NotImplemented
    are_of_examples = isinstance(target, Tensor) and is_wrapped(input) and is_wrapped(target)
    if not are_of_examples or input.dim() != 2 or target.dim() > 2:
        return NotImplemented
    scores, labels = physical(input), physical(target)
    reduction = arguments.pop("reduction", "mean")
    several = scores.shape[1] != 1
    given = {"input": scores.flatten(0, 1), "target": labels.flatten(0, 1), "reduction": "none"}
    try:
        losses = run(func, (), arguments | given)
    except IndexError:  # its message names the label
        raise IndexError(
            f"a label is outside of the {scores.shape[2]} classes that there are scores for; correct it, or give "
            'PerExampleClip(..., errors="skip"), with which such a record adds nothing'
        ) from None
    losses = losses.view(scores.shape[:2])
    if reduction == "none":
        return losses
    if reduction == "mean" and weight is not None and not several and not arguments.get("label_smoothing"):
        warn(_WEIGHTS_CANCEL.format(func.__name__))
    total = losses.sum(1) if several else losses.squeeze(1)
    if reduction == "sum":
        return total
    counted: Any = scores.shape[1]
    if target.dim() == 1:
        counted = labels != arguments.get("ignore_index", -100)
        if weight is not None:
            counted = torch.where(counted, weight[torch.where(counted, labels, 0)], 0)
        counted = counted.sum(1)
    return total / counted if reduction == "mean" else NotImplemented
