"""Small models to start from, built from a data set's shape. All of them look at one example at a time."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from noisette.nn import Scattering
from noisette.nn.scattering import CHANNELS

Shape = Sequence[int]  # of one example: (features,) or (channels, height, width)

_CROP = 24  # pixels a side of what the network of the CIFAR-10 study sees


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_numbers(shape), classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128 tanh units."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(_numbers(shape), 128),
        nn.Tanh(),
        nn.Linear(128, 128),
        nn.Tanh(),
        nn.Linear(128, classes),
    )


def mlp1000(shape: Shape, classes: int, *, units: int = 1000) -> nn.Module:
    """One hidden layer of ReLU units, no biases: behind 60 principal components, the network of the MNIST study.

    Weights begin as normal numbers of variance 1 / inputs, cut at two deviations.
    Source: Abadi et al. 2016, section 5.2, and their published code.
    """
    numbers = _numbers(shape)
    return nn.Sequential(
        nn.Flatten(),
        _normal(nn.Linear(numbers, units, bias=False), 1 / math.sqrt(numbers)),
        nn.ReLU(),
        _normal(nn.Linear(units, classes, bias=False), 1 / math.sqrt(units)),
    )


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with group norm and tanh, then two linear layers; 8 x 8 pixels and larger.

    Tanh keeps activations, and so gradients, of one size, which clipping rewards (Papernot et al. 2021).
    """
    _need_images("cnn", shape)
    small = max(shape[1:]) < 16
    features = nn.Sequential(Centred(), *(_small_features(shape[0]) if small else _features(shape[0])))
    with torch.no_grad():
        flat = features(torch.zeros(1, *shape)).numel()
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, classes))


def scattering(shape: Shape, classes: int) -> nn.Module:
    """Fixed wavelet features, normalised for each example, and one linear layer: strong at small budgets, and quick.

    Source: Tramèr & Boneh 2021.
    """
    _need_images("scattering", shape)
    normalised = nn.Sequential(Scattering(), nn.GroupNorm(27, CHANNELS * shape[0], affine=False), nn.Flatten())
    with torch.no_grad():
        numbers = normalised(torch.zeros(1, *shape)).numel()
    return FixedFeatures(normalised, nn.Linear(numbers, classes))


def cifar_tutorial(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions and three linear layers over the 24 x 24 pixels in the middle: that of the CIFAR-10 study.

    Its parts are called ``features`` (``conv1``, ``conv2``) and ``head`` (``fc1``, ``fc2``, ``scores``). The study
    learnt the features from public images, see :func:`pretrained`, and privately no more than the head. It distorted
    its training images at random, which this network does not.

    Source: Abadi et al. 2016, section 5.3; initial weights are those of the TensorFlow tutorial that it builds on.
    """
    _need_images("cifar-tutorial", shape)
    if min(shape[1:]) < _CROP:
        raise ValueError(f"the model 'cifar-tutorial' needs images of {_CROP} x {_CROP} pixels or more, got {shape}")
    features: dict[str, nn.Module] = {
        "crop": CentreCrop(_CROP),
        "standardised": nn.GroupNorm(1, shape[0], affine=False),
        "conv1": _normal(nn.Conv2d(shape[0], 64, 5, padding=2), 0.05),
        "relu1": nn.ReLU(),
        "pool1": nn.MaxPool2d(2),
        "conv2": _normal(nn.Conv2d(64, 64, 5, padding=2), 0.05, bias=0.1),
        "relu2": nn.ReLU(),
        "pool2": nn.MaxPool2d(2),
        "flat": nn.Flatten(),
    }
    head: dict[str, nn.Module] = {
        "fc1": _normal(nn.Linear(64 * (_CROP // 4) ** 2, 384), 0.04, bias=0.1),
        "relu1": nn.ReLU(),
        "fc2": _normal(nn.Linear(384, 384), 0.04, bias=0.1),
        "relu2": nn.ReLU(),
        "scores": _normal(nn.Linear(384, classes), 1 / 384),
    }
    parts = {"features": nn.Sequential(OrderedDict(features)), "head": nn.Sequential(OrderedDict(head))}
    return nn.Sequential(OrderedDict(parts))


class FixedFeatures(nn.Module):
    """A model whose first part is fixed, so that its outputs can be computed once for a whole data set.

    The fixed part is always in evaluation mode: dropout and running statistics stand still.

    Guarantee: ``features`` has nothing to train and treats each example alone, so computing it beforehand changes
    nothing about what training reveals.
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.head = head
        self.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.features.eval()
        return self


def projected(name: str, shape: Shape, classes: int, components: int) -> FixedFeatures:
    """A model behind a fixed projection of the flattened example, whose weight is yet to be set: (components, numbers).

    Raises:
        ValueError: there are more components than numbers in an example, or the model does not fit them.
    """
    if components > _numbers(shape):
        raise ValueError(f"expected components <= {_numbers(shape)}, the numbers of an example, got {components}")
    projection = nn.Linear(_numbers(shape), components, bias=False).requires_grad_(False)
    return FixedFeatures(nn.Sequential(nn.Flatten(), projection), build(name, (components,), classes))


def pretrained(model: nn.Module, path: Path, *, frozen: Sequence[str] = ("features",)) -> nn.Module:
    """The model with weights from a safetensors file, some parts of it frozen.

    What the file does not hold keeps its initial weights and is trained. To make a file for ``cifar-tutorial``, train
    ``build("cifar-tutorial", (3, 32, 32), 100)`` on CIFAR-100 in the ordinary way: 100 epochs of SGD in batches of 128,
    momentum 0.9, learning rate 0.1 falling along half a cosine, images shifted and mirrored at random. Save its state
    dict without the layer that has another number of classes::

        kept = {name: value for name, value in model.state_dict().items() if not name.startswith("head.scores")}
        safetensors.torch.save_file(kept, "cifar100.safetensors")

    Args:
        model: such as one of :func:`build`; its weights are overwritten.
        path: tensors by their names in the model's state dict.
        frozen: names of the parts that are not trained.

    Returns:
        The model, as :class:`FixedFeatures` if it consists of ``features``, all of them frozen, and ``head``.

    Guarantee: none for the records that the file was learnt from. They are public, or the file was released before and
    stands in their ledger.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no safetensors file, or it does not fit the model; all problems are listed. The model is then
            as it was.
    """
    weights = _weights(path)
    if problems := list(_misfits(model.state_dict(), weights, frozen)):
        raise ValueError(f"{path} and the model have {len(problems)} problems:\n  " + "\n  ".join(problems))
    model.load_state_dict(weights, strict=False)
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    parts = dict(model.named_children())
    if parts.keys() == {"features", "head"} and not any(p.requires_grad for p in parts["features"].parameters()):
        return FixedFeatures(parts["features"], parts["head"])
    return model


def _weights(path: Path) -> dict[str, Tensor]:
    """What a safetensors file holds; nothing in it can run."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def _misfits(known: Mapping[str, Tensor], weights: Mapping[str, Tensor], frozen: Sequence[str]) -> Iterator[str]:
    """Whatever speaks against these weights in a model with this state dict, in words."""
    if not weights:
        yield "the file holds no tensors"
    for name, value in weights.items():
        if name not in known:
            yield f"{name}: the model has no such tensor"
        elif value.shape != known[name].shape:
            yield (
                f"{name}: of shape {tuple(value.shape)} in the file and {tuple(known[name].shape)} in the model; leave "
                "it out of the file to train it anew"
            )
        elif not value.isfinite().all():
            yield f"{name}: holds values that are not finite"
    begun = {name.rpartition(".")[0] for name in weights}
    for name in (name for name in known if name not in weights):
        if any(name.startswith(f"{part}.") for part in frozen):
            yield f"{name}: frozen, but missing in the file"
        elif name.rpartition(".")[0] in begun:
            yield f"{name}: missing, though the file holds other tensors of that layer"
    for part in frozen:
        if not any(name.startswith(f"{part}.") for name in known):
            yield f"{part}: to be frozen, but no part of the model with weights is called so"


class CentreCrop(nn.Module):
    """The square in the middle of images, of this many pixels a side."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        top, left = ((pixels - self.side) // 2 for pixels in x.shape[-2:])
        return x[..., top : top + self.side, left : left + self.side]


class Centred(nn.Module):
    """Pixels in [0, 1] moved to [-1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


def _need_images(name: str, shape: Shape) -> None:
    if len(shape) != 3:
        raise ValueError(
            f"the model {name!r} needs images (channels, height, width), got examples of shape {tuple(shape)}"
        )


def _normal(layer: nn.Linear | nn.Conv2d, deviation: float, bias: float = 0.0) -> nn.Module:
    """The layer with normal weights, cut at two deviations, and one value for all biases."""
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer


def _small_features(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.GroupNorm(8, 32),
        nn.Tanh(),
    ]


def _features(channels: int) -> list[nn.Module]:
    return [
        nn.Conv2d(channels, 16, 8, stride=2, padding=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
    ]


_MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "cifar-tutorial": cifar_tutorial,
    "cnn": cnn,
    "linear": linear,
    "mlp": mlp,
    "mlp1000": mlp1000,
    "scattering": scattering,
}


def names() -> tuple[str, ...]:
    """Names of the models that come with noisette."""
    return tuple(_MODELS)


def build(name: str, shape: Shape, classes: int) -> nn.Module:
    """A fresh model: one of :func:`names`, or ``package.module:callable`` called with (shape, classes).

    Raises:
        ValueError: there is no such model, or it does not give one score per class for an example of this shape.
    """
    factory = _MODELS.get(name) or _imported(name)
    try:
        model = factory(shape, classes)
    except TypeError as error:
        raise ValueError(f"the model {name!r} is called with (shape of an example, classes), but: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"{name} returned a {type(model).__name__}, not a torch.nn.Module")
    with torch.no_grad():
        try:
            scores = model(torch.zeros(2, *shape))
        except RuntimeError as error:
            raise ValueError(f"the model {name!r} cannot take examples of shape {tuple(shape)}: {error}") from error
    if not isinstance(scores, Tensor) or scores.shape != (2, classes):
        got = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"the output of model {name!r} does not fit the labels: {classes} classes, output for 2: {got}"
        )
    return model


def _imported(name: str) -> Callable[[Shape, int], nn.Module]:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ValueError(
            f"no model {name!r}; there are {', '.join(_MODELS)}, or give your own as package.module:callable"
        )
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"no model {name!r}: {error}") from error


def _numbers(shape: Shape) -> int:
    return torch.Size(shape).numel()
