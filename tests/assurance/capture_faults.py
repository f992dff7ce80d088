"""Faults of captured steps: graphs that are stale, that count too much, or whose code is somebody else's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from noisette.capture import captured, compiler, graph, python_walk
from noisette.clipping import captured_step
from noisette.core.clip import Group, limits_of
from noisette.core.outside import OutsideTensors
from planted import Mutant

_STEP = "clipping/test_captured_step.py"
_STALE = "redteam/test_capture_stale_python.py::test_a_change_is_seen"
_COMPILER = "capture/test_compiler.py"


def counts_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(captured_step, "is_real", lambda count, size, device: torch.ones(size, dtype=torch.bool))


def ignores_the_flag(patch: pytest.MonkeyPatch) -> None:
    whole = captured_step._MaskedFactors.__call__

    def always_finite(self: Any, norms: torch.Tensor) -> torch.Tensor:
        factors = whole(self, norms)
        self.all_finite = torch.ones_like(self.all_finite)
        return factors

    patch.setattr(captured_step._MaskedFactors, "__call__", always_finite)


def first_bound(patch: pytest.MonkeyPatch) -> None:
    """The bound of the first batch stays that of the graph."""
    first: list[float] = []

    def limits(groups: list[Group], examples: float, device: torch.device) -> torch.Tensor:
        first.append(groups[0].bound)
        return limits_of([replace(group, bound=first[0]) for group in groups], examples, device)

    patch.setattr(captured_step, "limits_of", limits)


def baked(patch: pytest.MonkeyPatch) -> None:
    """What stood in the place of the constants when the graph was traced stands there for good."""
    patch.setattr(
        captured_step.CapturedSteps,
        "_constants",
        lambda self, traced, of: [traced.__dict__.setdefault(id(t), t.detach().clone()) for t in of.constants],
    )


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
        lambda patch: patch.setattr(captured_step, "_apart", list),
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
        lambda patch: patch.setattr(python_walk.Walk, "_of_object", lambda *_: ()),
        (f"{_STALE}[an attribute of a trainer]",),
    ),
    Mutant(
        "global names are not looked at",
        "a term's weight stays that of the first steps",
        lambda patch: patch.setattr(python_walk.Walk, "_named", lambda *_: ()),
        (f"{_STALE}[a global name of the loss]",),
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
    Mutant(
        "compiled code of another version or number of threads is loaded",
        "another computation than that of the graph",
        lambda patch: patch.setattr(compiler, "_key", lambda request: "same"),
        (f"{_COMPILER}::test_other_versions_and_numbers_of_threads_have_files_of_their_own",),
    ),
    Mutant(
        "compiled code of somebody else is loaded",
        "it runs with the rights of whoever trains",
        lambda patch: patch.setattr(compiler, "_why_distrusted", lambda place: None),
        (f"{_COMPILER}::test_code_of_somebody_else_is_never_loaded",),
        seen_as=(pytest.fail.Exception,),
    ),
]
