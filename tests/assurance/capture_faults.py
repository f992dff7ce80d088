"""Faults of captured steps: graphs that are stale, or that count too much."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from noisette.capture import captured, graph, step
from noisette.capture import captured as python_values
from noisette.core.clip import bounds_of
from noisette.core.loss import OutsideTensors
from planted import Mutant

_STEP = "clipping/test_captured_step.py"
_STALE = "redteam/test_capture_stale_python.py::test_a_change_is_seen"


def counts_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(step, "is_real", lambda count, size, device: torch.ones(size, dtype=torch.bool))


def ignores_the_flag(patch: pytest.MonkeyPatch) -> None:
    whole = step._TracedStep.__call__

    def always_finite(self: Any, *inputs: torch.Tensor) -> list[torch.Tensor]:
        *outputs, flag = whole(self, *inputs)
        return [*outputs, torch.ones_like(flag)]

    patch.setattr(step._TracedStep, "__call__", always_finite)


def first_bound(patch: pytest.MonkeyPatch) -> None:
    """The bound of the first batch stays that of the graph."""
    first: list[tuple[float, ...]] = []

    def bounds(values: tuple[float, ...], device: torch.device) -> torch.Tensor:
        first.append(values)
        return bounds_of(first[0], device)

    patch.setattr(step, "bounds_of", bounds)


def baked(patch: pytest.MonkeyPatch) -> None:
    """What stood in the place of the constants when the graph was traced stands there for good."""
    whole = graph.trace

    def trace(*given: Any) -> graph.Graph:
        traced = whole(*given)
        fixed = tuple([constant.detach().clone() for constant in traced.constants])
        return graph.Graph(traced.module, fixed, (None,) * len(fixed), traced.operations)

    patch.setattr(graph, "trace", trace)


MUTANTS = [
    Mutant(
        "repeated rows of a captured microbatch count",
        "one record moves the sum by several bounds",
        counts_padding,
        (f"{_STEP}::test_repeated_rows_count_for_nothing",),
    ),
    Mutant(
        "the flag of gradients that are not finite is ignored",
        "one record spoils the sum, or is multiplied by zero, which is not a number",
        ignores_the_flag,
        (f"{_STEP}::test_a_record_that_is_no_good_is_as_in_the_loop",),
    ),
    Mutant(
        "equal sums of a graph share memory",
        "the noise of one parameter is added to another one, and neither has its own",
        lambda patch: patch.setattr(step, "_apart", list),
        (f"{_STEP}::test_one_tensor_that_a_compiler_gives_for_two_sums_is_taken_apart",),
    ),
    Mutant(
        "an adaptive bound is fixed in the graph",
        "gradients are clipped to another bound than the noise is made for",
        first_bound,
        (f"{_STEP}::test_every_rule_is_captured_once_though_it_makes_groups_anew",),
    ),
    Mutant(
        "parameters are fixed in the graph",
        "gradients of the first weights are released for ever",
        baked,
        (f"{_STALE}[loaded weights]",),
    ),
    Mutant(
        "attributes of objects are not looked at",
        "a term's weight stays that of the first steps",
        lambda patch: patch.setattr(python_values, "_attributes", lambda value: {}),
        (f"{_STALE}[an attribute of a trainer]", f"{_STALE}[a rate of an optimizer in a closure]"),
    ),
    Mutant(
        "closures and global names are not looked at",
        "a term's weight stays that of the first steps",
        lambda patch: patch.setattr(python_values, "_held_by", lambda *_: ()),
        (f"{_STALE}[a global name of the loss]", f"{_STALE}[a cell]"),
    ),
    Mutant(
        "modes and attributes of modules are not looked at",
        "a part that is set to eval mode, or frozen, goes on as before",
        lambda patch: patch.setattr(python_values, "_add_modules", lambda *_: None),
        (f"{_STALE}[the mode of a part]", f"{_STALE}[an attribute of the model]", f"{_STALE}[a frozen part]"),
    ),
    Mutant(
        "a comparison gives both the same tensors",
        "a loss that writes into its arguments is computed from what it has written",
        lambda patch: patch.setattr(captured, "_copies", lambda inputs, is_written: list(inputs)),
        (f"{_STEP}::test_a_loss_that_writes_into_its_arguments_writes_once",),
        seen_as=(UserWarning,),
    ),
    Mutant(
        "a captured loss takes any tensor from outside",
        "class weights of the batch couple its examples",
        lambda patch: patch.setattr(OutsideTensors, "used", lambda self: []),
        (f"{_STEP}::test_class_weights_of_the_batch_are_refused_as_eagerly",),
    ),
    Mutant(
        "graphs are not compared with the step",
        "a defect of tracing or compiling trains something else",
        lambda patch: patch.setattr(captured, "relative_difference", lambda *_: 0.0),
        (f"{_STEP}::test_a_graph_that_differs_is_not_used",),
        seen_as=(UserWarning,),
    ),
    Mutant(
        "values of a batch stay in a graph as constants",
        "a record of one batch goes into the gradients of all later ones",
        lambda patch: patch.setattr(graph, "_GIVE_VALUES", set()),
        ("capture/test_graph.py::test_code_that_reads_values_of_an_input_is_refused",),
    ),
]
