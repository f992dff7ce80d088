"""Certified radii: lower bounds on the distance of an example to the nearest input of another predicted class."""

import copy
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from noisette.lipschitz import Constrained, NormBound, propagation
from noisette.lipschitz.layers import BoundedInput, SphereInput, per_example_norms
from noisette.lipschitz.projections import project

_AT_ONCE = 1000  # examples per call of the model
_ROUNDING = 1e-5  # relative to the norm of a weight: a smaller change by a projection is a rounding error
_TINY = 2.0**-500  # a gradient norm below every clipping norm
_LARGEST_NORM = 1e30  # larger examples have radius 0, because single precision does not resolve their neighbourhood
_SMALLEST_NORM = 1e-20  # likewise, in units of the sphere's radius


def certify(model: nn.Module, inputs: Tensor) -> Tensor:
    """For each input a Euclidean distance, (b,), within which every other input gets the same predicted class.

    The distance is over all elements of an example, in the units of ``inputs``: those of pixels, if the model starts
    with the standardisation of pixels. Scores are one for each class, or a single one whose sign is the class. A radius
    is 0 where nothing is certified, because scores are equal or not finite. Layers have a Lipschitz constant, as for
    :class:`noisette.LipschitzBound`; the model does not change.

    Guarantee: it holds for the exact function of the weights. Rounding errors of the scores in single precision, about
    a millionth of their size, are not included.
    Source: the lead of one score over another is sqrt(2) l-Lipschitz where the scores are l-Lipschitz; for inputs a and
    b outside of a ball of radius X, || P(a) - P(b) || <= 2 X ||a - b|| / (||a|| + ||b||) (Dunkl & Williams 1964).

    Raises:
        ValueError: a layer has no Lipschitz constant, a weight is not in its set, or the scores have another shape.

    >>> from noisette.nn.lipschitz import SpectralLinear
    >>> model = nn.Sequential(BoundedInput(x0=5.0), SpectralLinear(3, 3))
    >>> _ = model[1].weight.data.copy_(torch.eye(3))
    >>> certify(model, torch.tensor([[2.0, 0.5, -1.0]])).round(decimals=5)
    tensor([1.0607], dtype=torch.float64)
    """
    return _classes_and_radii(model, inputs)[1]


def certified_accuracy(model: nn.Module, inputs: Tensor, targets: Tensor, radii: Sequence[float]) -> list[float]:
    """The fraction of examples that are classified correctly everywhere within a distance, for each of these distances.

    Targets are classes, (b,), or 0 and 1 for a single score; at distance 0 the result is the accuracy without attack.

    >>> from noisette.nn.lipschitz import SpectralLinear
    >>> model = nn.Sequential(BoundedInput(x0=5.0), SpectralLinear(1, 1))
    >>> _ = model[1].weight.data.fill_(1.0)
    >>> certified_accuracy(model, torch.tensor([[0.5], [1.0], [-3.0]]), torch.tensor([1, 1, 1]), radii=[0.0, 0.7])
    [0.6666666666666666, 0.3333333333333333]
    """
    if not len(inputs) or targets.shape != inputs.shape[:1]:
        raise ValueError(
            f"expected at least one example and one target for each, got inputs of shape {tuple(inputs.shape)} and "
            f"targets of shape {tuple(targets.shape)}"
        )
    classes, certified = _classes_and_radii(model, inputs)
    correct = classes == targets.to(classes.device)
    return [float((correct & (certified > radius)).double().mean()) for radius in radii]


@torch.no_grad()
def _classes_and_radii(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Predicted classes and certified radii, shape (b,) each."""
    layers = propagation.layers(_projected_copy(model), NormBound(math.inf, tuple(inputs.shape[1:])))
    unknown = [
        f"{name} ({type(layer).__name__})" if name else type(layer).__name__
        for name, layer, x in layers
        if type(layer) is not SphereInput and not _lipschitz_constant(layer, x) < math.inf
    ]
    if unknown:
        raise ValueError(
            f"layers without a Lipschitz constant: {', '.join(unknown)}. No radius is known in front of them; certify "
            "their output instead: certify(model[k:], model[:k](inputs)), where the first k layers hold them"
        )
    classes, radii = zip(*(_certify_batch(layers, batch) for batch in inputs.split(_AT_ONCE)), strict=True)
    return torch.cat(classes), torch.cat(radii)


def _projected_copy(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode with norms that are certified for the current weights, which lie in their sets."""
    copied = copy.deepcopy(model).eval().requires_grad_(False)
    for module in copied.modules():
        if type(module) is nn.Dropout:
            module.p = 0.0  # it does nothing in evaluation mode, but its bound is that of training
    project(copied)
    outside = []
    for (name, module), original in zip(copied.named_modules(), model.modules(), strict=True):
        if isinstance(module, Constrained) and isinstance(original, Constrained):
            projected, weight = module.matrices().double(), original.matrices().double()
            if (projected - weight).norm() > _ROUNDING * weight.norm():
                outside.append(f"{name} ({type(module).__name__})")
    if outside:
        raise ValueError(
            f"weights outside of their set, so their Lipschitz constants are unknown: {', '.join(outside)}. "
            "LipschitzBound keeps weights in their sets; noisette.lipschitz.projections.project(model) projects them"
        )
    return copied


def _certify_batch(layers: Sequence[tuple[str, nn.Module, NormBound]], x: Tensor) -> tuple[Tensor, Tensor]:
    """Classes and radii of one batch: forward through the layers, then radii backward from the scores to the input."""
    norms = []
    for _, layer, _ in layers:
        norms.append(per_example_norms(x))
        x = layer(x)
    classes, radii = _score_radii(x)
    for (_, layer, bound), layer_norms in reversed(list(zip(layers, norms, strict=True))):
        radii = _input_radii(layer, bound, layer_norms, radii)
    return classes, radii.nan_to_num(nan=0.0, posinf=0.0)


def _score_radii(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Classes, and the distance between the scores and the nearest scores of another class."""
    if scores.dim() == 1 or scores.shape[1:] == (1,):
        single = scores.flatten().double()
        return (single > 0).long(), single.abs()
    if scores.dim() != 2:
        raise ValueError(f"expected scores of shape (b, classes), (b, 1) or (b,), got {tuple(scores.shape)}")
    first, second = scores.double().topk(2, dim=1).values.unbind(1)
    return scores.argmax(1), (first - second) / math.sqrt(2)


def _input_radii(layer: nn.Module, x: NormBound, norms: Tensor, radii: Tensor) -> Tensor:
    """Radii at the input of a layer from radii at its output, for inputs of these norms."""
    if not isinstance(layer, BoundedInput) or type(layer) not in (BoundedInput, SphereInput):
        return radii / _lipschitz_constant(layer, x)
    apart = 2 * radii * norms / (2 * layer.x0 + radii)
    if type(layer) is SphereInput:  # the scaling contracts outside of the sphere and expands inside
        return torch.where((norms < _LARGEST_NORM) & (norms > _SMALLEST_NORM * layer.x0), apart, 0.0)
    # The projection is 1-Lipschitz everywhere, and contracts between two points that both lie outside.
    return torch.where(norms < _LARGEST_NORM, torch.maximum(radii, torch.minimum(apart, norms - layer.x0)), 0.0)


def _lipschitz_constant(layer: nn.Module, x: NormBound) -> float:
    """Lipschitz constant of a layer: the bound that it gives for a gradient too small to be clipped."""
    return propagation.backward(layer, x, _TINY)[0] / _TINY
