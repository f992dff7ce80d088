"""What a private step of a model and its loss needs: whether it vectorises, which rules serve it, and what it costs."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from noisette.capture.captured import CaptureWarning, wait_for
from noisette.clipping.engines import BookKeeping, OneByOneWarning
from noisette.core.clip import ClippedSum, Clipping
from noisette.core.forms import match, operation_name
from noisette.core.loss import Loss, Microbatch
from noisette.core.trace import ForwardPass, Recording, own_copies
from noisette.core.vmap import ExamplesDisagreeError
from noisette.errors import PrivacyError, line_of
from noisette.lipschitz.bound import LayerBound, LipschitzBound
from noisette.ranks import Alone
from noisette.run.per_example import PerExampleClip
from noisette.run.private import batch_mixing_modules, privatize, said_of_modules

_WARM_UP, _MEASURED = 3, 5  # steps; a step is captured in the second one
_LONGEST = 20.0  # seconds, after which one measured step is enough


@dataclass(frozen=True)
class UseLine:
    """One use of one parameter in the loss."""

    parameter: str
    operation: str
    operand: str
    shape: tuple[int, ...]  # of the operation's first other tensor, with the examples first
    rule: str  # the name of the rule, or "own copies": the parameter is copied for each example
    per_example_numbers: int  # elements of one example's gradient


@dataclass(frozen=True)
class Cost:
    """One private and one plain step on the examples that were given."""

    examples: int
    private_seconds: float
    plain_seconds: float | None  # None where the loss cannot be called with several examples at once
    graph: str  # how the private step ran: as one graph, or why not

    def __str__(self) -> str:
        private, plain = self.private_seconds, "was not measured, because the loss takes one example at a time alone"
        if self.plain_seconds is not None:
            plain = f"{1e3 * self.plain_seconds:.3g} ms ({private / self.plain_seconds:.2g} times)"
        return (
            f"A private step of these {self.examples} examples takes {1e3 * private:.3g} ms, with clipping, noise and "
            f"ledger; a plain one {plain}. It ran as {self.graph}; nothing was compiled, which long runs do."
        )


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` found; as text the rules or bounds, what is to be known, the cost, and the verdict."""

    refused: tuple[str, ...]  # each with its remedy; nothing else is filled in where there are any
    one_by_one: str = ""  # why each example needs a call of its own, and the cure; empty for a loss that vectorises
    apart: str = ""  # why some of these examples are computed apart from others, and the cure
    line: str = ""  # of the code that cannot be vectorised, or in which examples disagree
    uses: tuple[UseLine, ...] = ()  # where the loss vectorises
    unreached: tuple[str, ...] = ()  # parameters that the loss depends on for no example; noise is added to them
    remarks: tuple[str, ...] = ()  # of modules, from their attribute ``remark``, with name and class
    bounds: tuple[LayerBound, ...] = ()  # of the layers of a Lipschitz network
    cost: Cost | None = None

    def __str__(self) -> str:
        if self.refused:
            return "\n  ".join(["Refused:", *self.refused])
        told = [_rules(self.uses)] if self.uses else []
        told += [_layers(self.bounds)] if self.bounds else []
        if self.unreached:
            told.append(
                f"Noise alone: the loss of none of these examples depends on {', '.join(self.unreached)}; freeze what "
                "no loss uses (requires_grad=False)"
            )
        told += self.remarks
        if self.one_by_one:
            told.append(f"One example at a time: {self.one_by_one}")
        if self.apart:
            told.append(f"Examples that disagree are computed apart: {self.apart}\n  {self.line}")
        told += [str(self.cost)] if self.cost is not None else []
        how = "its loss is computed one example at a time" if self.one_by_one else "its loss vectorises"
        how += ", for examples that agree" if self.apart else ""
        return "\n\n".join([*told, f"Accepted: {how}."])


def _rules(uses: Iterable[UseLine]) -> str:
    rows = [("parameter", "used by", "input", "rule", "elements per example")]
    for use in uses:
        shape, used_by = " × ".join(map(str, use.shape)), f"{use.operation} ({use.operand})"
        rows.append((use.parameter, used_by, shape, use.rule, f"{use.per_example_numbers:,}"))
    return _table(rows)


def _layers(bounds: Iterable[LayerBound]) -> str:
    rows = [("layer", "input norm", "gradient at output", "sensitivity")]
    for line in bounds:
        sensitivities = ", ".join(f"{name} {value:.4g}" for name, value in line.sensitivities.items())
        rows.append((f"{line.name}  {line.kind}", f"{line.input_norm:.4g}", f"{line.gradient_norm:.4g}", sensitivities))
    return _table(rows)


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def explain(model: nn.Module | LipschitzBound, loss: Loss, *batch: Any, public: Iterable[Tensor] = ()) -> Explanation:
    """Take a few private and plain steps on public or made-up examples, and say what a run would do with them.

    The steps have a learning rate of zero: weights and buffers stay as they are. ``.grad`` is cleared.

    Args:
        model: the model, or the Lipschitz bound of one.
        loss, public: as for :meth:`PrivateRun.accumulate`.
        batch: one microbatch of examples that are public or made up; their results are shown.

    Raises:
        ValueError: the model has nothing to train, or its parameters have no shapes yet.
        Exception: whatever the loss raises for these examples.

    >>> print(explain(nn.Linear(3, 2), lambda model, x: model(x).sum(), torch.ones(4, 3)))
    parameter  used by          input  rule           elements per example
    weight     linear (weight)  4 × 3  linear_weight  6
    bias       linear (bias)    4 × 3  linear_bias    2
    ...
    Accepted: its loss vectorises.
    """
    clipped = not isinstance(model, LipschitzBound)
    bound = PerExampleClip(model, 1.0, capture="graph") if clipped else model
    module = bound.model
    if refused := tuple(batch_mixing_modules(module)):
        bound.close()
        return Explanation(refused)
    microbatch, public = Microbatch(batch, {}), tuple(public)
    with _unchanged(module), warnings.catch_warnings():
        warnings.simplefilter("ignore", OneByOneWarning)  # which is returned, as what follows
        warnings.simplefilter("ignore", CaptureWarning)
        try:
            seconds, graph = _private_steps(bound, loss, microbatch, public)
        except PrivacyError as refusal:
            return Explanation((str(refusal),))
        finally:
            bound.close()
        found = _seen_vectorised(module, loss, microbatch, public) if clipped else Explanation(())
        optimizer, plain = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.0), None
        with suppress(RuntimeError, ValueError, TypeError, LookupError, AttributeError, AssertionError):
            plain = _measured(lambda: loss(module, *batch).sum().backward(), optimizer)  # raises for one example alone
        unreached = _unreached(module, loss, microbatch, every=bool(found.one_by_one or found.apart))
    return replace(
        found,
        unreached=unreached,
        remarks=tuple(said_of_modules(module, lambda part: getattr(part, "remark", ""))),
        bounds=() if clipped else tuple(model.layers()),
        cost=Cost(microbatch.count, seconds, plain, graph),
    )


def sum_of_outputs(model: nn.Module, *args: Any, **keywords: Any) -> Tensor:
    """A loss for any model: all numbers among its outputs, added up."""
    outputs = [leaf for leaf in tree_leaves(model(*args, **keywords)) if isinstance(leaf, Tensor)]
    return torch.stack([output.float().sum() for output in outputs if output.is_floating_point()]).sum()


def _seen_vectorised(model: nn.Module, loss: Loss, batch: Microbatch, public: tuple[Tensor, ...]) -> Explanation:
    """The uses of parameters in one microbatch; why each example needs a call of its own, why some do, and the line."""
    engine = _Watching()
    clip = PerExampleClip(model, 1.0, engine=engine, capture="eager")
    apart = line = ""

    def watched(model: nn.Module, *args: Any) -> Tensor:
        nonlocal apart, line
        try:
            return loss(model, *args)
        except ExamplesDisagreeError as error:
            apart, line = error.cause, line_of(error)
            raise

    with warnings.catch_warnings():
        warnings.simplefilter("error", OneByOneWarning)
        try:
            clip.accumulate(watched, *batch.args, public=public)
        except OneByOneWarning as warning:
            return Explanation((), one_by_one=str(warning), line=warning.line)
        finally:
            clip.close()
    return Explanation((), apart=apart, line=line, uses=tuple(dict.fromkeys(engine.uses)))


class _Watching(BookKeeping):
    """Keeps which operation used which parameter."""

    uses: tuple[UseLine, ...] = ()

    def clipped_sum(self, forward: ForwardPass, parameters: Mapping[str, Tensor], clipping: Clipping) -> ClippedSum:
        self.uses += tuple(_use_lines(forward.recording, parameters))  # of examples that disagree, too
        return super().clipped_sum(forward, parameters, clipping)


def _use_lines(recording: Recording, parameters: Mapping[str, Tensor]) -> Iterator[UseLine]:
    names = {id(p): name for name, p in parameters.items()}
    names |= {
        key: " + ".join(names.get(id(p), "frozen") for p in weight.parents) + f" ({operation_name(weight.operation)})"
        for key, weight in recording.derived.items()
    }
    for use in recording.uses:
        found = match(use.operation, use.args, use.kwargs, use.weights)
        for operand in found.operands:
            for weight in operand.weights:
                others = [value for value in found.arguments.values() if isinstance(value, Tensor)]
                first = next((value for value in others if value is not weight), weight)
                operation, rule = operation_name(use.operation), getattr(operand.rule, "__name__", "none")
                if use.operation is own_copies:
                    operation, rule = "several operations", "own copies"
                parameter, shape = names.get(id(weight), "frozen"), tuple(first.shape)
                yield UseLine(parameter, operation, operand.name, shape, rule, weight.numel())


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Within it steps may be taken with a learning rate of zero; buffers and random states are put back afterwards."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    model.zero_grad()
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        try:
            yield
        finally:
            model.zero_grad()
            with torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)


def _private_steps(
    bound: PerExampleClip | LipschitzBound, loss: Loss, batch: Microbatch, public: tuple[Tensor, ...]
) -> tuple[float, str]:
    count = batch.count
    optimizer = torch.optim.SGD(bound.parameters.values(), lr=0.0)
    declared: dict[str, Any] = {"sampling_rate": 1.0, "expected_batch_size": count, "noise_multiplier": 1.0}
    drawn = torch.zeros(count, 1)  # all of them, and the examples that were given are used in their place
    with privatize(bound, optimizer, drawn, steps=_WARM_UP + _MEASURED, ranks=Alone(), **declared) as run:
        batches = run.batches()

        def accumulate() -> None:
            for _ in next(batches).microbatches(count):
                run.accumulate(loss, *batch.args, public=public)

        seconds = _measured(accumulate, optimizer)
    if isinstance(bound, LipschitzBound):
        return seconds, "eager: the step of a Lipschitz network is never captured"
    if bound.captured_operations:
        return seconds, f"one graph of {bound.captured_operations} operations"
    problems = bound.capture_problems or ("each example is computed in a call of its own",)
    return seconds, f"eager: {problems[0]}"


def _measured(compute_gradients: Callable[[], None], optimizer: Optimizer) -> float:
    """The seconds of the quickest of some steps, after some steps to warm up."""
    device, seconds = optimizer.param_groups[0]["params"][0].device, []
    begin = time.perf_counter()
    for k in range(_WARM_UP + _MEASURED):
        if k > _WARM_UP and time.perf_counter() - begin > _LONGEST:
            break
        start = time.perf_counter()
        compute_gradients()
        optimizer.step()
        optimizer.zero_grad()
        wait_for(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[_WARM_UP:])


def _unreached(model: nn.Module, loss: Loss, batch: Microbatch, *, every: bool) -> tuple[str, ...]:
    """The names of the parameters that the loss of no example depends on; without ``every`` the first one is enough."""
    left = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for k in range(batch.count if every else 1):
        value = loss(model, *batch.of_rows([k]).args)
        if left and value.requires_grad:
            found = torch.autograd.grad(value.sum(), list(left.values()), allow_unused=True)
            left = {name: p for (name, p), g in zip(left.items(), found, strict=True) if g is None}
    return tuple(left)
