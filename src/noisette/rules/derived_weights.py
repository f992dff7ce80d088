"""From per-example gradients of derived weights to those of the parameters from which they are computed.

The gradient of a slice or a transpose is that of its part of the parameter, and the gradient of a sum is that of each
term, so their forms are used as they are. Through any other derivation, each example's gradient is propagated by
autograd. For a packed projection split into W_q, W_k and W_v, the squared norm of the parameter's gradient is the sum
of the three squared norms, and the three forms stay factored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise

import torch
from torch import Tensor

from noisette.core import forms
from noisette.core.forms import Dense, DerivedWeight, ExampleGradients, Key, Outer, compact

_SUMS = (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__)
_DIFFERENCES = (torch.sub, Tensor.sub, Tensor.__sub__)


@dataclass(frozen=True)
class Region:
    """The memory of a view: offset in elements from the start of the storage, size and stride."""

    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @staticmethod
    def of(view: Tensor) -> Region:
        return Region(int(view.storage_offset()), tuple(view.shape), view.stride())


@dataclass(frozen=True)
class Slices:
    """Gradients of a parameter from those of views of it that do not overlap, zero elsewhere."""

    parameter: Tensor
    parts: tuple[tuple[Region, ExampleGradients], ...]

    def squared_norms(self) -> Tensor:
        return torch.stack([part.squared_norms() for _, part in self.parts]).sum(0)

    def explicit(self) -> Tensor:
        gradients = [part.explicit() for _, part in self.parts]
        full = gradients[0].new_zeros(gradients[0].shape[0], *self.parameter.shape)
        for view, gradient in zip(self._views(full), gradients, strict=True):
            view.add_(gradient)
        return full

    def weighted_sum(self, weights: Tensor) -> Tensor:
        sums = [part.weighted_sum(weights) for _, part in self.parts]
        full = sums[0].new_zeros(1, *self.parameter.shape)
        for view, total in zip(self._views(full), sums, strict=True):
            view.add_(total)
        return full[0]

    def _views(self, full: Tensor) -> list[Tensor]:
        """Each region of ``full``, (b, *parameter.shape): views (b, *region.size)."""
        count, start = self.parameter.numel(), self.parameter.storage_offset()
        return [full.as_strided((len(full), *at.size), (count, *at.stride), at.offset - start) for at, _ in self.parts]

    def select(self, examples: Tensor | slice) -> Slices:
        return Slices(self.parameter, tuple((at, part.select(examples)) for at, part in self.parts))


@compact.register
def _(form: Slices) -> Slices:
    return Slices(form.parameter, tuple((at, compact(part)) for at, part in form.parts))


@lru_cache(maxsize=256)
def _disjoint(regions: tuple[Region, ...]) -> bool:
    """Whether no element of memory belongs to two elements of these regions."""
    ends = [at.offset + sum((n - 1) * s for n, s in zip(at.size, at.stride, strict=True)) + 1 for at in regions]
    spans = sorted(zip([at.offset for at in regions], ends, strict=True))
    if all(end <= begin for (_, end), (begin, _) in pairwise(spans)) and not any(map(_overlaps_itself, regions)):
        return True  # one behind the other, as the matrices of experts
    index = torch.arange(max(ends))
    touched = torch.cat([index.as_strided(at.size, at.stride, at.offset).reshape(-1) for at in regions])
    return touched.unique().numel() == touched.numel()


def _is_view(derived: Tensor, parameter: Tensor) -> bool:
    """Whether each element of a derived weight is another element of its parameter."""
    same_memory = derived.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()
    plain = same_memory and derived.dtype == parameter.dtype and parameter.is_contiguous()
    return plain and not _overlaps_itself(Region.of(derived))


def _overlaps_itself(view: Region) -> bool:
    """Whether two elements of the view may share memory, as after ``expand`` or ``unfold``.

    Axes are added from the smallest stride on; each stride must exceed the extent of the axes before it.
    """
    extent = 0
    for stride, n in sorted(zip(view.stride, view.size, strict=True)):
        if n > 1 and stride <= extent:
            return True
        extent += (n - 1) * stride
    return False


def to_parameters(
    gradients: Sequence[tuple[Tensor, ExampleGradients]], derived: Mapping[int, DerivedWeight]
) -> list[tuple[Tensor, ExampleGradients]]:
    """The gradients of each parameter, once, given those of the parameters and derived weights that were used.

    All gradients of one parameter are added before any norm is taken: those of its own uses, of views of it, and of
    other weights derived from it. ``derived`` has how these were computed, by their identity.
    """
    direct: dict[Tensor, list[tuple[Region, ExampleGradients]]] = {}  # known by identity, as all tensors are
    views: dict[Tensor, list[tuple[Region, ExampleGradients]]] = {}
    pending = list(_added(gradients).items())
    while pending:
        tensor, form = pending.pop(0)
        weight = derived.get(id(tensor))
        if weight is None:
            direct.setdefault(tensor, []).append((Region.of(tensor), form))
            continue
        parent = weight.parents[0]
        if len(weight.parents) > 1 or not _is_view(tensor, parent):
            pending += _to_parents(weight, form)
        else:
            at = Region.of(tensor)
            if len(at.size) == 2 and at.stride[0] < at.stride[1] and isinstance(form, Outer):
                at, form = Region(at.offset, at.size[::-1], at.stride[::-1]), form.transposed()  # one for W^T and W
            direct.setdefault(parent, [])
            views.setdefault(parent, []).append((at, form))
    return [(parameter, _merge(parameter, parts + views.get(parameter, []))) for parameter, parts in direct.items()]


forms.TO_PARAMETERS.append(to_parameters)


def _added(gradients: Sequence[tuple[Key, ExampleGradients]]) -> dict[Key, ExampleGradients]:
    """The sum of the gradients of each tensor or region."""
    grouped: dict[Key, list[ExampleGradients]] = {}
    for key, form in gradients:
        grouped.setdefault(key, []).append(form)
    return {key: forms.add(given) for key, given in grouped.items()}


def _merge(parameter: Tensor, parts: Sequence[tuple[Region, ExampleGradients]]) -> ExampleGradients:
    """The sum of gradients of the whole parameter and of regions of it; written out where regions overlap."""
    slices = tuple(_added(parts).items())
    if len(slices) == 1 and slices[0][0] == Region.of(parameter):
        return slices[0][1]
    if _disjoint(tuple(at for at, _ in slices)):
        return Slices(parameter, slices)
    return Dense(Slices(parameter, slices).explicit())


def _to_parents(weight: DerivedWeight, form: ExampleGradients) -> list[tuple[Tensor, ExampleGradients]]:
    """Gradients of the tensors from which a derived weight was computed, from its own gradients."""
    if (derive := forms.DERIVATIONS.get(weight.operation)) and (found := derive(weight, form)) is not None:
        return found
    if terms := _terms(weight):
        return [(term, form) for term in terms]
    arrived = form.explicit().to(weight.tensor.dtype)
    backward = partial(torch.autograd.grad, weight.tensor, weight.parents, retain_graph=True, materialize_grads=True)
    try:
        gradients = backward(arrived, is_grads_batched=True)
    except RuntimeError:  # the derivation is one that vmap does not take
        gradients = [torch.stack(of_all) for of_all in zip(*map(backward, arrived), strict=True)]
    return [
        (parent, Dense(gradient.to(forms.AT_LEAST_SINGLE.get(gradient.dtype, gradient.dtype))))
        for parent, gradient in zip(weight.parents, gradients, strict=True)
    ]


def _terms(weight: DerivedWeight) -> list[Tensor]:
    """The parameters whose gradient is that of this sum or difference; none if any term's gradient differs from it."""
    if weight.kwargs or weight.operation not in _SUMS + _DIFFERENCES:
        return []
    terms = [term for term in weight.args if isinstance(term, Tensor) and term.requires_grad]
    # A term that is no leaf may have been overwritten since, and then has another derivation.
    like = all(p.is_leaf and p.shape == weight.tensor.shape and p.dtype == weight.tensor.dtype for p in terms)
    return terms if like and not (weight.operation in _DIFFERENCES and terms[-1] is weight.args[1]) else []
