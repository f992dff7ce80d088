"""Faults of the bound: clipping, norms, and sums over pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from noisette.clipping.engines import BookKeeping
from noisette.core import clip as clipping_norms
from noisette.core import forms
from noisette.core.backward import ForwardPass
from noisette.core.batches import Batch
from noisette.core.clip import Accumulator, ClippedSum, Clipping, Group, Weights, clipping_factors, group_of
from noisette.core.forms import Dense, Outer, Rows, Total
from noisette.core.loss import Loss, Microbatch
from noisette.core.release import GaussianRelease
from noisette.core.trace import one_value
from noisette.rules.attention import touched_rows
from noisette.rules.conv import KernelGradients
from noisette.run.per_example import PerExampleClip
from planted import Mutant, Patch

_ORACLE = "clipping/test_engines.py::test_clipped_sum_is_the_oracles"
_AUDIT = "audit/test_step_audit.py::test_real_loop_is_the_documented_mechanism[BookKeeping-1.0]"
_ALONE = "clipping/test_engines.py::test_one_example_never_exceeds_the_bound"


def oracle(case: str) -> str:
    return f"{_ORACLE}[{case.replace(' ', '-')}-BookKeeping]"


def bounds(change: Callable[[float], float]) -> Patch:
    """Clipping goes by another bound than the noise."""

    def factors(groups: Iterable[Group], norms: Tensor) -> Tensor:
        return clipping_factors([replace(group, bound=change(group.bound)) for group in groups], norms)

    return lambda patch: patch.setattr("noisette.core.clip.clipping_factors", factors)


def engine(clipped_sum: Callable[..., ClippedSum]) -> Patch:
    """The usual engine computes its sum like this, given its own way and its arguments."""
    whole = BookKeeping.clipped_sum

    def changed(self: BookKeeping, forward: ForwardPass, parameters: Any, clipping: Clipping) -> ClippedSum:
        return clipped_sum(
            lambda other=clipping: whole(self, forward, parameters, other), forward, parameters, clipping
        )

    return lambda patch: patch.setattr(BookKeeping, "clipped_sum", changed)


def each_tensor(
    whole: Callable[..., ClippedSum], forward: ForwardPass, parameters: Any, clipping: Clipping
) -> ClippedSum:
    """Each tensor has the whole bound to itself."""
    alone = Clipping(
        [[name] for name in parameters], lambda norms: torch.cat([clipping.factors(row[None]) for row in norms])
    )
    clipped = whole(alone)
    return ClippedSum(clipped.sums, clipped.norms.norm(dim=0, keepdim=True))


def the_batch(
    whole: Callable[..., ClippedSum], forward: ForwardPass, parameters: Any, clipping: Clipping
) -> ClippedSum:
    """The sum of the batch is clipped."""
    losses = forward.losses
    total = torch.autograd.grad(losses.sum(), list(parameters.values()), materialize_grads=True)
    norm = torch.cat([g.flatten() for g in total]).norm().view(1, 1)
    sums = {name: g * clipping.factors(norm)[0] for name, g in zip(parameters, total, strict=True)}
    return ClippedSum(sums, norm.expand(1, len(losses)))


def with_fresh_dropout(
    whole: Callable[..., ClippedSum], forward: ForwardPass, parameters: Any, clipping: Clipping
) -> ClippedSum:
    """Norms are those of one forward pass, the sum is that of another."""
    call = forward.recording.call
    assert call is not None
    norms = whole().norms
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for k, factor in enumerate(clipping.factors(norms)[0]):
        with torch.enable_grad():
            one = call.batch.of_row(k)
            again = one_value(call.loss(call.model, *one.args, **one.kwargs))
        for name, g in zip(sums, torch.autograd.grad(again, list(parameters.values())), strict=True):
            sums[name] += factor * g
    return ClippedSum(sums, norms)


def without_biases(patch: pytest.MonkeyPatch) -> None:
    whole = clipping_norms.group_norms

    def group_norms(squared: Mapping[str, Tensor], groups: Any, losses: Tensor) -> Tensor:
        return whole({name: part for name, part in squared.items() if not name.endswith("bias")}, groups, losses)

    patch.setattr(clipping_norms, "group_norms", group_norms)


def rounded_norms(patch: pytest.MonkeyPatch) -> None:
    whole = clipping_norms.group_norms
    patch.setattr(clipping_norms, "group_norms", lambda *args: whole(*args).to(torch.bfloat16).to(torch.float32))


@dataclass(frozen=True)
class PositionsApart(Dense):
    """A bias whose norm is taken as if its positions had nothing to do with each other."""

    apart: Tensor

    def squared_norms(self) -> Tensor:
        return self.apart


def bias_by_the_rule_of_weights(patch: pytest.MonkeyPatch) -> None:
    whole = forms._RULES[F.linear, "bias"]

    def rule(examples: Any, dy: Tensor, *args: Any, **kwargs: Any) -> PositionsApart:
        explicit = whole(examples, dy, *args, **kwargs).explicit()
        return PositionsApart(explicit, examples.sequences(dy).square().sum((1, 2)))

    patch.setitem(forms._RULES, (F.linear, "bias"), rule)


def product_of_norms(patch: pytest.MonkeyPatch) -> None:
    def squared_norms(self: Outer) -> Tensor:
        return (self.left.square().sum(2) * self.right.square().sum(2)).sum(1)

    patch.setattr(Outer, "squared_norms", squared_norms)
    patch.setattr("noisette.core.forms._MIN_POSITIONS_TO_KEEP", 10**9)


def swapped_axes(patch: pytest.MonkeyPatch) -> None:
    """Steps of the kernel along one axis are taken along the other."""
    whole = KernelGradients.unfolded

    def unfolded(form: KernelGradients) -> Tensor:
        g = form.geometry
        return whole(replace(form, geometry=replace(g, stride=g.stride[::-1], dilation=g.dilation[::-1])))

    patch.setattr(KernelGradients, "unfolded", unfolded)


def counted_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "noisette.rules.attention.touched_rows",
        lambda ids, rows, weight, padding: touched_rows(ids, rows, weight, None),
    )


def repeated_ids_apart(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Rows, "squared_norms", lambda self: self.rows.square().sum((1, 2)))


def tied_apart(patch: pytest.MonkeyPatch) -> None:
    """Uses of one parameter count as parameters of their own in the norm."""
    patch.setattr(
        Total, "squared_norms", lambda self: torch.stack([part.squared_norms() for part in self.parts]).sum(0)
    )
    patch.setattr("noisette.core.backward.add", lambda forms: forms[0] if len(forms) == 1 else Total(tuple(forms)))


def last_use_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("noisette.core.backward.add", lambda forms: forms[-1])


def multiplied_by_zero(patch: pytest.MonkeyPatch) -> None:
    """A gradient that is not a number gets the factor zero instead of being cut out."""

    def of(clipping: Clipping, norms: Tensor) -> Weights:
        weights = clipping.factors(norms).nan_to_num(0.0)
        return Weights(weights.unbind(), group_of(clipping.groups), None)

    patch.setattr(Weights, "of", of)


def last_piece_alone(patch: pytest.MonkeyPatch) -> None:
    def add(self: Accumulator, sums: Mapping[str, Tensor]) -> None:
        self._sums = dict(sums)

    patch.setattr(Accumulator, "add", add)


def kept_for_the_next_step(patch: pytest.MonkeyPatch) -> None:
    whole = Accumulator.pop_sums

    def take(self: Accumulator, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        left = {name: total.clone() for name, total in self._sums.items()}
        taken = whole(self, parameters)
        self._sums = left
        return taken

    patch.setattr(Accumulator, "pop_sums", take)


def partial_batch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Batch, "check_bounded", lambda self, expected: None)


def gradients_of_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GaussianRelease, "check_no_others", lambda self, parameters: None)


def raw_beside(patch: pytest.MonkeyPatch) -> None:
    whole = PerExampleClip.add

    def add(self: PerExampleClip, loss: Loss, microbatch: Microbatch, public: tuple[Tensor, ...]) -> None:
        loss(self.model, *microbatch.args).sum().backward()
        whole(self, loss, microbatch, public)

    patch.setattr(PerExampleClip, "add", add)


MUTANTS = [
    Mutant("clipped at twice the bound", "epsilon more than doubles", bounds(lambda c: 2 * c), (_ALONE, _AUDIT)),
    Mutant("clipped at half the bound", "signal is lost", bounds(lambda c: c / 2), (oracle("attention"), _AUDIT)),
    Mutant("the bound ignored", "every bound is 1", bounds(lambda c: 1.0), (oracle("attention"), _AUDIT)),
    Mutant("not clipped", "one record moves the sum by any amount", bounds(lambda c: 1e30), (_ALONE, _AUDIT)),
    Mutant(
        "each tensor clipped alone",
        "one record moves k tensors by the root of k bounds",
        engine(each_tensor),
        (oracle("mlp with in-place relu"), _ALONE),
    ),
    Mutant(
        "the batch clipped",
        "a record moves the share of all others",
        engine(the_batch),
        (oracle("mlp with in-place relu"), _AUDIT),
    ),
    Mutant(
        "second forward pass with fresh dropout",
        "norms belong to other masks than the sum",
        engine(with_fresh_dropout),
        ("rules/test_model_features.py::test_one_example_under_random_draws_stays_within_the_bound",),
    ),
    Mutant("norm without biases", "norms are too small", without_biases, (oracle("mlp with in-place relu"), _ALONE)),
    Mutant("norms in half precision", "one record exceeds the bound by 0.4 %", rounded_norms, (_ALONE,)),
    Mutant(
        "bias by the rule of weights",
        "norms of sequences are too small",
        bias_by_the_rule_of_weights,
        (oracle("attention"),),
    ),
    Mutant(
        "product of norms for sequences",
        "norms of sequences are too small",
        product_of_norms,
        (oracle("attention"), "core/test_forms.py::test_positions_of_one_example_never_just_add_up"),
    ),
    Mutant(
        "axes of a convolution swapped",
        "gradients of uneven kernels are wrong",
        swapped_axes,
        ("rules/test_conv.py::test_lattice",),
        seen_as=(RuntimeError,),
    ),
    Mutant(
        "padding row counted",
        "a row that never moves takes its part of the norm",
        counted_padding,
        (oracle("padding row"),),
    ),
    Mutant(
        "repeated words counted apart",
        "norms of texts are too small",
        repeated_ids_apart,
        (oracle("padding row"), "core/test_forms.py::test_rows"),
    ),
    Mutant(
        "tied weight counted twice",
        "norms of tied weights are too small",
        tied_apart,
        (oracle("tied embedding and output"), oracle("linear called twice")),
    ),
    Mutant(
        "last use of a weight alone",
        "gradients of weights that are used twice are wrong",
        last_use_alone,
        (oracle("linear called twice"),),
    ),
    Mutant(
        "what is not a number times zero",
        "one bad record makes all weights NaN",
        multiplied_by_zero,
        ("clipping/test_engines.py::test_bad_example_contributes_exactly_nothing",),
    ),
    Mutant(
        "last piece alone",
        "a batch counts in part",
        last_piece_alone,
        (
            "clipping/test_engines.py::test_pieces_add_up_to_the_whole",
            "run/test_private_run.py::test_pieces_change_nothing",
        ),
    ),
    Mutant(
        "sum kept for the next step",
        "a record takes part in steps that did not draw it",
        kept_for_the_next_step,
        ("clipping/test_engines.py::test_pieces_add_up_to_the_whole", _AUDIT),
    ),
    Mutant(
        "stop at a partial batch",
        "a batch that was left half-way is released",
        partial_batch,
        (
            "run/test_private_run.py::test_step_after_a_part_of_the_batch",
            "run/test_private_run.py::test_batch_gone_through_twice",
        ),
    ),
    Mutant(
        "gradients of a stray backward accepted",
        "private gradients reach the optimizer",
        gradients_of_others,
        ("run/test_private_run.py::test_stray_backward",),
    ),
    Mutant(
        "raw gradients left in .grad",
        "private gradients are there for all to see",
        raw_beside,
        ("run/test_private_run.py::test_gradient_is_the_clipped_sum_and_noise_over_the_constant",),
    ),
]
