"""How far an example may be moved before the class that a model predicts can change: certified, not attacked.

Bounds that keep one example from moving the weights too far also keep a small change of an example from moving its
scores too far.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from noisette.lipschitz import Constrained, NormBound, is_constrained, propagation
from noisette.lipschitz.project import project
from noisette.nn.lipschitz import BoundedInput, NormCap, SphereInput
from noisette.nn.lipschitz.axes import per_example_norms

_AT_ONCE = 1000  # examples in memory
_ROUNDING = 1e-5  # of a weight's norm: what moves less in a projection was in its set
_TINY = 2.0**-500  # a gradient that no clipping of gradients touches
_LONGEST = 1e30  # nothing is said of longer examples: single precision would not hold their neighbours
_SHORTEST = 1e-20  # in units of the sphere; likewise


def certify(model: nn.Module, inputs: Tensor) -> Tensor:
    """The Euclidean distance within which no other input has another class, for each input.

    The distance is over all numbers of an example, in the units of ``inputs``: those of pixels, where the model begins
    with the standardisation of pixels. Scores are one for each class, or a single one whose sign tells two classes.

    Args:
        model: of parts that have a Lipschitz constant, as :class:`noisette.LipschitzBound` takes them; it stays as it
            is, and is asked in evaluation mode.
        inputs: examples, (b, ...).

    Returns:
        Radii (b,), in double precision; 0 where nothing is certified: scores that are equal, or not finite.

    Guarantee: of the function that the weights define. What rounding adds to scores in single precision, about a
    millionth of their size, is not counted.
    Source: the lead of one score over another is sqrt(2) l-Lipschitz where the scores are l-Lipschitz; for inputs a and
    b outside of a ball of radius X, || P(a) - P(b) || <= 2 X ||a - b|| / (||a|| + ||b||) (Dunkl & Williams 1964).

    Raises:
        ValueError: a part has no Lipschitz constant, a weight is not in its set, or scores of another shape.
        PrivacyError: a weight is parametrized.

    >>> from noisette.nn.lipschitz import SpectralLinear
    >>> model = nn.Sequential(BoundedInput(x0=5.0), SpectralLinear(3, 3))
    >>> _ = model[1].weight.data.copy_(torch.eye(3))
    >>> certify(model, torch.tensor([[2.0, 0.5, -1.0]])).round(decimals=5)
    tensor([1.0607], dtype=torch.float64)
    """
    return _examined(model, inputs)[1]


def certified_accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, radii: Sequence[float]) -> list[float]:
    """The share of examples whose class is right and cannot change within a distance, for each of these distances.

    Args:
        model: see :func:`certify`.
        inputs: examples, (b, ...).
        targets: their classes, (b,); 0 and 1 where there is a single score.
        radii: Euclidean distances; at 0 it is the accuracy without attack.

    Raises:
        ValueError: see :func:`certify`; or there is no example, or not one target for each.

    >>> from noisette.nn.lipschitz import SpectralLinear
    >>> model = nn.Sequential(BoundedInput(x0=5.0), SpectralLinear(1, 1))
    >>> _ = model[1].weight.data.fill_(1.0)
    >>> certified_accuracy(model, torch.tensor([[0.5], [1.0], [-3.0]]), torch.tensor([1, 1, 1]), radii=[0.0, 0.7])
    [0.6666666666666666, 0.3333333333333333]
    """
    if not len(inputs) or targets.shape != inputs.shape[:1]:
        raise ValueError(
            f"expected one target for each of at least one example, got inputs of shape {tuple(inputs.shape)} and "
            f"targets of shape {tuple(targets.shape)}"
        )
    classes, certified = _examined(model, inputs)
    right = classes == targets.to(classes.device)
    return [float((right & (certified > radius)).double().mean()) for radius in radii]


@torch.no_grad()
def _examined(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Classes and radii, (b,) each."""
    parts = dict(_parts("", _in_its_sets(model)))
    _require_stretches(parts, NormBound(math.inf, tuple(inputs.shape[1:])))
    found = [_radii(list(parts.values()), piece) for piece in inputs.split(_AT_ONCE)]
    classes, radii = zip(*found, strict=True)
    return torch.cat(classes), torch.cat(radii)


def _in_its_sets(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode whose norms are certified for the weights of now, whoever trained them."""
    settled = copy.deepcopy(model).eval().requires_grad_(False)
    project(settled)
    moved = [
        f"{name} ({type(module).__name__})"
        for (name, module), before in zip(settled.named_modules(), model.modules(), strict=True)
        if is_constrained(module) and is_constrained(before) and _far(module, before)
    ]
    if moved:
        raise ValueError(
            f"weights outside of their set, so they stretch by nobody knows how much: {', '.join(moved)}. "
            "LipschitzBound keeps weights in it; noisette.lipschitz.project.project(model) brings them back"
        )
    return settled


def _far(module: Constrained, before: Constrained) -> bool:
    now, then = module.matrices().double(), before.matrices().double()
    return bool((now - then).norm() > _ROUNDING * then.norm())


def _parts(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The parts of nested sequences, in order."""
    if type(module) is not nn.Sequential:
        yield name, module
        return
    for k, part in enumerate(module):  # a part that stands in two places is two parts
        yield from _parts(f"{name}.{k}" if name else str(k), part)


def _require_stretches(parts: dict[str, nn.Module], x: NormBound) -> None:
    """Every part has a Lipschitz constant.

    Raises:
        ValueError: some have not.
    """
    boundless = []
    for name, part in parts.items():
        if type(part) is not SphereInput and not _stretch(part, x) < math.inf:
            boundless.append(f"{name} ({type(part).__name__})" if name else type(part).__name__)
        x = propagation.forward(part, x)
    if boundless:
        raise ValueError(
            f"parts without a Lipschitz constant: {', '.join(boundless)}. A radius in front of them is not known; of "
            "what they put out it is: certify(model[k:], model[:k](inputs)), where the first k parts hold them"
        )


def _radii(parts: Sequence[nn.Module], inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Classes, and radii walked back from the scores to the inputs."""
    reach, way = NormBound(math.inf, tuple(inputs.shape[1:])), []
    for part in parts:
        way.append((part, reach, per_example_norms(inputs)))
        reach, inputs = propagation.forward(part, reach), part(inputs)
    classes, radii = _lead(inputs)
    for part, reach, norms in reversed(way):
        radii = _in_front(part, reach, norms, radii)
    return classes, radii.nan_to_num(nan=0.0, posinf=0.0)


def _lead(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Classes, and how far scores may move until the class changes."""
    if scores.dim() == 1 or scores.shape[1:] == (1,):
        only = scores.flatten().double()
        return (only > 0).long(), only.abs()
    if scores.dim() != 2:
        raise ValueError(f"expected scores of shape (b, classes), (b, 1) or (b,), got {tuple(scores.shape)}")
    first, second = scores.double().topk(2, dim=1).values.unbind(1)
    return scores.argmax(1), (first - second) / math.sqrt(2)


def _in_front(part: nn.Module, x: NormBound, norms: Tensor, radii: Tensor) -> Tensor:
    """What radii at the output of a part are worth at its input, for inputs of these norms."""
    match part:
        case BoundedInput(x0=size) | NormCap(cap=size) if type(part) in (BoundedInput, NormCap):
            return _through_ball(norms, radii, size)
        case SphereInput(x0=size) if type(part) is SphereInput:
            return _through_sphere(norms, radii, size)
        case _:
            return radii / _stretch(part, x)


def _through_ball(norms: Tensor, radii: Tensor, size: float) -> Tensor:
    """In front of the projection on a ball of this size, of examples with these norms.

    The projection stretches nothing, and shrinks what stays outside.
    """
    outside = torch.minimum(2 * radii * norms / (2 * size + radii), norms - size)
    return torch.where(norms < _LONGEST, torch.maximum(radii, outside), 0.0)


def _through_sphere(norms: Tensor, radii: Tensor, size: float) -> Tensor:
    """In front of the scaling to a sphere of this size; it shrinks what lies outside, and stretches what is inside."""
    known = (norms < _LONGEST) & (norms > _SHORTEST * size)
    return torch.where(known, 2 * radii * norms / (2 * size + radii), 0.0)


def _stretch(part: nn.Module, x: NormBound) -> float:
    """Lipschitz constant of a part: what becomes of a gradient, so small that no part clips it, on its way back."""
    return propagation.backward(part, x, _TINY)[0] / _TINY
