"""Engines besides the default one, losses that cannot be vectorised, and loops that call ``loss.backward()``."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.utils.stateless import _reparametrize_module  # pyright: ignore[reportPrivateImportUsage]
from torch.overrides import TorchFunctionMode

from noisette import errors as checks
from noisette.core import trace, vmap
from noisette.core.backward import gradients_apart, per_example_gradients, search
from noisette.core.clip import BookKeeping as BookKeeping
from noisette.core.clip import ClippedSum, Clipping, Engine, Factors, clip_and_sum, group_norms, may_wait, together
from noisette.core.forms import Dense, ExampleGradients, Operation
from noisette.core.loss import CALL, CallAgainError, Loss, Microbatch
from noisette.core.trace import ForwardPass, LossCall, Recording, TrainedModel, recorded, tensors_among
from noisette.core.trees import Args, Keywords, leaves, map_leaves, tensors, with_leaves
from noisette.core.vmap import DRAWN, DRAWS, QUESTIONS, Draws, NotVectorizedError, as_if_compiled
from noisette.errors import PrivacyError, line_of

# One example after the other, for a loss that ``torch.func.vmap`` cannot vectorise: code may branch on its values


class OneByOneWarning(UserWarning):
    """The loss cannot be vectorised; its examples are computed one after the other, with the same result."""

    def __init__(self, error: Exception) -> None:
        fact = (str(error) or f"the loss raises {type(error).__name__}").partition("\n")[0].partition(". ")[0]
        said = error.cause if isinstance(error, NotVectorizedError) else f"{fact}."
        self.line = line_of(error)  # of the model or the loss; empty where it is not known
        where = f"\n  {self.line}\n" if self.line else " "
        super().__init__(
            f"{said}{where}Each example is therefore computed in a call of its own, from the outputs of the model on "
            "where that can be vectorised, and in no captured graph: the sum is the same, and may take as long as so "
            "many microbatches of one example."
        )


def clipped_sum_one_by_one(call: LossCall, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
    """The clipped sum of a microbatch, by one call of the loss for each example."""
    return _clipped_in_parts((_loss_and_gradients(call, k, parameters) for k in range(call.batch.count)), clipping)


def _clipped_in_parts(parts: Iterable[tuple[Tensor, Mapping[str, Tensor]]], clipping: Clipping) -> ClippedSum:
    """The clipped sum of a batch, given losses (n,) and gradients (n, *parameter.shape) of n examples at a time."""
    return together(
        clip_and_sum({name: Dense(g) for name, g in gradients.items()}, losses, clipping) for losses, gradients in parts
    )


def _loss_and_gradients(
    call: LossCall, k: int, leaves: Mapping[Any, Tensor], own: Sequence[Tensor] = ()
) -> tuple[Tensor, dict[Any, Tensor]]:
    """The loss of example k, (1,), and its gradients, (1, *leaf.shape), by name; ``own`` are its other tensors."""
    draws = Draws(call.buffers.seed)
    while True:
        one = call.batch.of_rows([k])
        try:
            with torch.enable_grad(), as_if_compiled(), call.buffers.lent(), _OneExample([*one.tensors, *own], draws):
                value = trace.one_value(call.loss(call.model, *one.args, **one.kwargs))
            break
        except CallAgainError as error:
            draws.share(error.shared)
    return value.detach().reshape(1), _gradients([value], None, leaves) if value.requires_grad else {}


def _gradients(outputs: list[Tensor], arrived: list[Tensor] | None, leaves: Mapping[Any, Tensor]) -> dict[Any, Tensor]:
    """The gradients of one example, (1, *leaf.shape), by name; ``arrived`` are those at the outputs."""
    with gradients_apart(leaves.values()) as written:
        found = torch.autograd.grad(outputs, [*leaves.values()], arrived, arrived is not None, allow_unused=True)
    named = dict[Any, Tensor]()
    for (name, leaf), g in zip(leaves.items(), found, strict=True):
        if parts := [part for part in (g, written.get(id(leaf))) if part is not None]:
            named[name] = sum(parts[1:], parts[0])
    return {name: (g if g.layout is torch.strided else g.to_dense()).unsqueeze(0) for name, g in named.items()}


class _OneExample(TorchFunctionMode):
    """Marks what is computed from an example, and refuses what was computed from another one."""

    def __init__(self, tensors: Sequence[Tensor], draws: Draws) -> None:
        super().__init__()
        self._call = object()
        self._draws = draws
        for tensor in tensors:
            setattr(tensor, CALL, self._call)

    def __torch_function__(self, func: Operation, types: Any, args: Args = (), kwargs: Keywords | None = None) -> Any:
        kwargs = kwargs or {}
        is_of_example = False
        if func in QUESTIONS:
            self._draws.check(args[0])
        place = self._draws.place(kwargs) if func in DRAWS else None
        for tensor in tensors_among(args[:1], {}) if func in trace.OF_A_CONSTANT else tensors_among(args, kwargs):
            if (call := getattr(tensor, CALL, None)) is not None:
                if call is not self._call:
                    raise trace.kept_from_another_call(tensor)
                is_of_example = True
        output = self._draws.shared(func, args, kwargs) if place in self._draws.places else func(*args, **kwargs)
        if place is not None or self._draws.any:
            is_followed = lambda tensor: hasattr(tensor, CALL) or hasattr(tensor, DRAWN)  # noqa: E731
            self._draws.follow(func, place, args, kwargs, trace.outputs_of(output), is_followed)
        if is_of_example:
            for tensor in trace.outputs_of(output):
                setattr(tensor, CALL, self._call)
        return output


# Calls of the model at once, where losses are computed otherwise: in a loop that does it itself, or one by one

Rows = Tensor | list[Tensor]  # of an output, each (1, ...) or ()


@dataclass(eq=False)
class RecordedCall:
    """A call of the model with b rows, and the gradients that have arrived at its outputs so far."""

    count: int  # b
    outputs: list[Rows]  # at which a gradient can arrive
    recording: Recording | None  # None where the rows were computed one after the other
    gradients: dict[int, Tensor] = field(default_factory=dict)  # by number of the output, each (b, ...)


@dataclass(frozen=True)
class Returned:
    """What a call of the model has returned, without a graph."""

    call: RecordedCall
    output: Any  # as the model returned it, with tensors of all rows
    values: list[Tensor]  # those among them at which a gradient can arrive, each (b, ...)


def record_rows(model: TrainedModel, batch: Microbatch, *, one_by_one: bool) -> Returned:
    """Call the model with each row of its arguments as a batch of one.

    A ``PrivacyError`` says that an argument or output has no rows, an argument has a gradient, or the model refuses
    ``vmap`` for a reason that one row at a time would not remove.
    """
    if any(tensor.requires_grad for tensor in batch.tensors):
        raise PrivacyError(
            "the private model was called with a tensor that requires gradients, and none flow through it: give it "
            "tensor.detach() where none are needed, call model.eval() first where those of inputs are, train what made "
            "it where no record is (Lightning: in on_train_batch_end), or make that a part of the model"
        )
    with vmap.shared_numbers(model.module, model.buffers.seed) as (code, _):
        if not one_by_one:
            try:
                output, rows, recording = recorded(code, model, batch)
                return _returned(batch.count, output, rows, recording)
            except NotVectorizedError as error:
                checks.warn(OneByOneWarning(error))
        outputs = []
        for k in range(batch.count):
            one = batch.of_rows([k])
            with model.buffers.lent():
                outputs.append(code(*one.args, **one.kwargs))
    entries = zip(*map(leaves, outputs), strict=True)
    columns = [list(entry) if isinstance(entry[0], Tensor) else None for entry in entries]
    return _returned(batch.count, outputs[0], columns, None)


def _returned(count: int, output: Any, columns: Sequence[Rows | None], recording: Recording | None) -> Returned:
    """What was returned, given the rows of each entry; one without rows is kept as it is."""
    outputs, values, entries = [], [], []
    for leaf, rows in zip(leaves(output), columns, strict=True):
        if rows is None:
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                raise PrivacyError(
                    f"the model returns a tensor of shape {tuple(leaf.shape)} that depends on weights and on no "
                    "record, and its gradient cannot be clipped; leave it out (weight decay belongs to the optimizer)"
                )
            entries.append(leaf)
            continue
        shape = tuple(rows[0].shape)
        if shape and shape[0] != 1:
            raise PrivacyError(
                f"the model returns a tensor of shape {shape} for a record, where the first axis has to be that of the "
                "records, of length 1: transpose it in the model, as by batch_first=True"
            )
        if isinstance(rows, Tensor):
            value = (rows.flatten(0, 1) if shape else rows).detach().clone()
        else:
            value = (torch.cat(rows) if shape else torch.stack(rows)).detach()
        entries.append(value)
        if rows[0].requires_grad:
            outputs.append(rows)
            values.append(value)
    return Returned(RecordedCall(count, outputs, recording), with_leaves(output, entries), values)


def clipped_sum_of(
    calls: Sequence[RecordedCall], scale: float, engine: Engine, parameters: Mapping[str, Tensor], clipping: Clipping
) -> ClippedSum:
    """The clipped sum over the rows of calls for the same records; the graphs of the calls are used up.

    Gradients that have arrived at the outputs are multiplied with ``scale``: the rows, where the loss is their mean.

    Guarantee: a row's gradient over all calls is clipped before it is added; where the gradient at a row's outputs
    depends on that row alone, adding or removing a row changes each sum by at most its bound.
    Source: Abadi et al. 2016, algorithm 1, lines 6 and 7.
    """
    used = [(call.outputs[k], gradient) for call in calls for k, gradient in call.gradients.items()]
    recordings = [call.recording for call in calls if call.recording is not None]
    for call in calls:
        call.outputs, call.recording = [], None
    if len(recordings) == len(calls):
        with torch.enable_grad():
            products = [y * g.reshape(y.shape) for y, g in used if isinstance(y, Tensor)]
            terms = [product.reshape(len(product), -1).sum(1, dtype=torch.float64) for product in products]
            losses = torch.stack(terms).sum(0) * scale
        uses = [use for recording in recordings for use in recording.uses]
        derived = {key: weight for recording in recordings for key, weight in recording.derived.items()}
        if not search(losses, uses, parameters).uncovered:  # all weights were used by operations that can be seen
            del used, recordings, products, terms
            return engine.clipped_sum(ForwardPass(losses, Recording(uses, derived)), parameters, clipping)

    def of_row(k: int) -> tuple[Tensor, dict[str, Tensor]]:
        """A number, (1,), and the gradients of one row, (1, *parameter.shape), by name."""
        outputs = [output[k] for output, _ in used]
        arrived = [gradient[k].reshape(output[k].shape) * scale for output, gradient in used]
        return outputs[0].new_zeros(1), _gradients(outputs, arrived, parameters)

    return _clipped_in_parts(map(of_row, range(calls[0].count)), clipping)


def calls_of_loss(
    loss: Loss, trained: TrainedModel, batch: Microbatch, record: Callable[[Operation], Any], opened: set[nn.Module]
) -> RecordedCall:
    """The calls of modules until the loss fails in ``vmap``, as one, and the gradients that arrive at their outputs.

    For these gradients the loss is called with each example, and is given its rows of what the modules have returned.
    A module that fails in ``vmap``, as one that computes the loss itself, is ``opened``: those inside of it are called.
    ``record`` is :func:`trace.recorded` for this model and batch.

    A ``NotVectorizedError`` says that a module cannot be vectorised, or losses depend on weights or records otherwise.

    Guarantee: what arrives at an example's rows is computed from that example, these rows, weights and buffers alone.
    """
    model, weights, modules = trained.module, trained.parameters, list[tuple[nn.Module, Any]]()  # and numbers after it
    copied = partial(map_leaves, lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf)

    def until_it_fails(*args: Any, **kwargs: Any) -> list[Any]:
        found: list[Any] = []  # the arguments of a call, what it has returned, the arguments of the next one
        level = vmap.current_level()
        modules.clear()

        def called(module: nn.Module, *given: Any) -> Any:
            nonlocal under_way
            under_way, numbers = module, vmap.other_numbers()
            found.append(copied(given))  # the loss may write into what it gives and gets
            held = tensors(given)
            before = [(id(tensor), tensor._version) for tensor in held]
            output = module(*given[0], **given[1])
            if before != [(id(tensor), tensor._version) for tensor in tensors(given)] or vmap.current_level() != level:
                raise NotVectorizedError("A module writes into its arguments, or is called within torch.func.")
            under_way = None
            found.append(copied(output))
            now = vmap.other_numbers()
            modules.append((module, None if now == numbers else now))
            return output

        try:
            with _calls_made_by(called, model, opened):
                loss(model, *args, **kwargs)
        except Exception as error:
            is_ours = isinstance(error, PrivacyError | CallAgainError | torch.OutOfMemoryError)
            if (is_ours and not isinstance(error, NotVectorizedError)) or not found or len(found) % 2:
                raise  # also where a module fails
        if any(vmap.is_wrapped(buffer) or buffer._version for buffer in model.buffers()):
            raise NotVectorizedError("The loss writes into a buffer.")
        return found

    while True:
        under_way: nn.Module | None = None  # the module that fails
        try:
            found, columns, recording = record(until_it_fails)
            break
        except NotVectorizedError:
            if under_way is None or next(under_way.children(), None) is None:
                raise
            batch.check_unwritten()
            opened.add(under_way)
    entries = iter(zip(leaves(found), columns, strict=True))
    parts = [[next(entries) for _ in leaves(part)] for part in found]
    ends = [rows for part in parts[1::2] for _, rows in part if rows is not None]
    example: Any = None  # under way: its number, the calls that are to come, and the rows that they give

    def again(module: nn.Module, *given: Any) -> Any:
        k, calls, following = example
        (expected, numbers), arguments, output, entries = next(calls)
        are_rows = all(
            now.shape == rows.shape[1:] and torch.allclose(rows[k], now, rtol=1e-3, atol=1e-6, equal_nan=True)
            for (_, rows), now in zip(arguments, leaves(given), strict=True)
            if rows is not None
        )
        if module is not expected or not are_rows:  # as where random numbers that reach it are drawn anew
            raise ValueError("the loss calls modules otherwise for one example")
        if numbers is not None:
            vmap.go_on_with(numbers)
        return with_leaves(output, [leaf if rows is None else next(following).clone() for leaf, rows in entries])

    def gradients_of(k: int) -> dict[Any, Tensor]:
        returned = [rows[k].detach().requires_grad_(rows.requires_grad) for rows in ends]

        def behind(*args: Any, **kwargs: Any) -> Tensor:
            nonlocal example
            example = k, iter(zip(modules, parts[::2], found[1::2], parts[1::2], strict=True)), iter(returned)
            return loss(*args, **kwargs)

        starts = {n: row for n, row in enumerate(returned) if row.requires_grad}
        call = LossCall(behind, model, batch, trained.buffers)
        gradients = _loss_and_gradients(call, k, starts | dict(weights), returned)[1]
        if not starts or gradients.keys() & weights.keys():
            raise ValueError("the loss uses weights outside of the calls of modules")
        return gradients

    try:
        with _calls_made_by(again, model, opened):
            each = [gradients_of(k) for k in range(batch.count)]
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise NotVectorizedError("The loss of an example alone makes other calls of modules.") from error
    reached = {n for of_one in each for n in of_one} or {next(n for n, rows in enumerate(ends) if rows.requires_grad)}
    gradients = {
        n: torch.cat([of_one[n] if n in of_one else ends[n].new_zeros(1, *ends[n].shape[1:]) for of_one in each])
        for n in sorted(reached)
    }
    return RecordedCall(batch.count, list(ends), recording, gradients)


@contextmanager
def _calls_made_by(instead: Callable[..., Any], model: nn.Module, opened: Set[nn.Module]) -> Iterator[None]:
    """Within it ``instead(module, args, kwargs)`` is what a call of a module gives outside of others not ``opened``."""
    own, before, is_inside = set(model.modules()) - opened, nn.Module.__call__, False

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_inside
        if is_inside or module not in own:
            return before(module, *args, **kwargs)
        is_inside = True
        try:
            return instead(module, args, kwargs)
        finally:
            is_inside = False

    nn.Module.__call__ = call
    try:
        yield
    finally:
        nn.Module.__call__ = before


class ReweightGP:
    """Two passes that keep no gradient: norms in the first, each parameter's clipped sum in the second.

    No factors of gradients are held between the two, so the memory is that of plain training. The second pass weighs
    the gradients of the examples, not their losses, so that the sum is exact in half precision, with several groups,
    and where some gradient is not finite. Both passes go over one graph; where activation checkpoints are recomputed,
    the forward pass is repeated with the same random numbers, or by `BookKeeping` where it cannot be repeated.

    Guarantee: an example's gradient of a parameter is scaled down to its norm in the first pass wherever it is longer
    in the second, so that the bound does not depend on the passes being equal.

    Raises:
        PrivacyError: the second pass gave gradients that are not finite, or of other parameters, as those of a function
            that draws random numbers of its own in each backward pass may be.

    Source: Lee & Kifer 2020, algorithm 1, with the sums of section 5.
    """

    repeats_the_pass = True  # it is given a forward pass that can be run again

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        is_repeated = any(use.is_recomputed for use in forward.recording.uses)
        if is_repeated and forward.repeat is None:
            return BookKeeping().clipped_sum(forward, parameters, clipping)
        squared = per_example_gradients(
            forward,
            parameters,
            lambda forms: {name: form.squared_norms() for name, form in forms.items()},
            retain_graph=not is_repeated,
        )
        norms = group_norms(squared, clipping.groups, forward.losses)
        with torch.no_grad():
            factors = Factors.of(clipping, norms)

        def sum_and_norms(name: str, form: ExampleGradients) -> tuple[Tensor, Tensor]:
            if name not in squared:
                raise PrivacyError(f"{name} has a gradient in the second backward pass, but had none in the first")
            now = form.squared_norms()
            return factors.sum_of(name, form, None if clipping.are_finite else _shortening(squared[name], now)), now

        second = forward if not is_repeated or forward.repeat is None else forward.repeat()
        found = per_example_gradients(
            second, parameters, lambda forms: {name: sum_and_norms(name, form) for name, form in forms.items()}
        )
        if not clipping.are_finite:  # a graph of fixed operations repeats itself
            again = {name: now for name, (_, now) in found.items()}
            _check_finite(norms, group_norms(again, clipping.groups, forward.losses))
        return ClippedSum({name: total for name, (total, _) in found.items()}, norms)


def _shortening(before: Tensor, now: Tensor) -> Tensor:
    """By what to multiply gradients with the squared norms ``now``, so that none is longer than it was before."""
    return torch.where(now > before, (before.double() / now).sqrt(), 1.0)


def _check_finite(first: Tensor, second: Tensor) -> None:
    """Check that the norms (groups, b) of the second pass are finite for each example that counts."""
    passed = (~first.isfinite().all(0) | second.isfinite()).all()
    message = (
        "a gradient that was finite in the first backward pass is not finite in the second: the model does "
        "not compute the same twice; use noisette.engines.BookKeeping(), which computes once"
    )
    if not may_wait(first.device):
        torch._assert_async(passed, message)  # pyright: ignore[reportPrivateImportUsage]
    elif not bool(passed):
        raise PrivacyError(message)


class PerExampleLoop:
    """One example after the other, forward and backward, clipped and added up. Needs no rule and no ``vmap``; slow.

    Random numbers of the loss are drawn anew for each example: the sum is that of other masks than `BookKeeping`'s.

    Source: Lee & Kifer 2020 (nxBP).
    """

    computes_again = True  # the loss, so that a graph of it is of no use

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        call = _call_of(forward)
        with call.autocast:
            return clipped_sum_one_by_one(call, parameters, clipping)


@dataclass(frozen=True)
class Vmap:
    """``torch.func.vmap`` of ``torch.func.grad`` of the loss: the gradients of ``chunk_size`` examples at once.

    The plain reference: it needs no rule, and memory for the gradients of a chunk. Random numbers of the loss are drawn
    anew, as by `PerExampleLoop`.

    Raises:
        ValueError: the chunk size is below one.
    """

    chunk_size: int = 32
    computes_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checks.count(chunk_size=self.chunk_size)

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        return _clipped_in_parts(self._parts(_call_of(forward), parameters), clipping)

    def _parts(self, call: LossCall, parameters: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """The losses (n,) and gradients (n, *parameter.shape) of n examples at a time."""
        buffers = {name: buffer.detach() for name, buffer in call.buffers.values().items()}
        trained = {name: p.detach() for name, p in parameters.items()}

        def loss_of(trained: dict[str, Tensor], tensors: list[Tensor]) -> tuple[Tensor, Tensor]:
            copies = {name: buffer.clone() for name, buffer in buffers.items()}  # the model's own stay as they are
            one = call.batch.with_tensors([tensor.unsqueeze(0) for tensor in tensors])
            with _reparametrize_module(call.model, trained | copies, tie_weights=True):
                loss = trace.one_value(call.loss(call.model, *one.args, **one.kwargs)).reshape(())
            return loss, loss

        of_one = torch.func.grad(loss_of, has_aux=True)
        of_all = torch.func.vmap(of_one, in_dims=(None, 0), randomness="different")
        for rows in zip(*[tensor.detach().split(self.chunk_size) for tensor in call.batch.tensors], strict=True):
            with as_if_compiled(), call.autocast:
                try:
                    gradients, losses = of_all(trained, list(rows))
                except (PrivacyError, torch.OutOfMemoryError):
                    raise
                except RuntimeError as error:
                    raise PrivacyError(
                        f"torch.func cannot differentiate the loss: {error}\n"
                        "Use engine=noisette.engines.PerExampleLoop(), which needs no torch.func."
                    ) from error
            yield losses, gradients


def _call_of(forward: ForwardPass) -> LossCall:
    """What computes the loss for other examples; refused in a trace, where a graph of all of them is of no use."""
    if get_proxy_mode() is not None:
        raise RuntimeError("this engine computes examples one after the other, or in chunks, and is not captured")
    if forward.call is None:
        raise PrivacyError(
            "this engine computes the loss of one example, which a loop that calls loss.backward() does not give; use "
            "noisette.engines.BookKeeping() or ReweightGP()"
        )
    return forward.call
