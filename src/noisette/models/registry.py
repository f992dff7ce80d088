"""The models that come with noisette, by name, and models of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import torch
from torch import Tensor, nn

from noisette.models.bilstm import bilstm_dl, ln_bilstm_dl
from noisette.models.fixed_features import FixedFeatures
from noisette.models.lenet import lenet_5, lenet_300_100
from noisette.models.lipschitz import (
    dct_lipschitz_dense,
    lipschitz_dense,
    lipschitz_linear,
    lipschitz_mixer,
    lipschitz_patch,
    lipschitz_rows,
    scattering_lipschitz_linear,
)
from noisette.models.norms import batch_norm, layer_norm
from noisette.models.resnets import resnet
from noisette.models.shapes import Shape, numbers_of
from noisette.models.small import cnn, linear, mlp, mlp1000, scattering
from noisette.models.tutorial import cifar_tutorial, tf_tutorial
from noisette.models.vggs import light_vgg, vgg
from noisette.nn.evaluation import in_evaluation

_MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "mlp1000": mlp1000,
    "cnn": cnn,
    "scattering": scattering,
    "lenet-300-100": lenet_300_100,
    "bn-lenet-300-100": partial(lenet_300_100, norm=batch_norm),
    "ln-lenet-300-100": partial(lenet_300_100, norm=layer_norm),
    "lenet-5": lenet_5,
    "bn-lenet-5": partial(lenet_5, norm=batch_norm),
    "ln-lenet-5": partial(lenet_5, norm=layer_norm),
    "cifar-tutorial": cifar_tutorial,
    "bn-cifar-tutorial": partial(cifar_tutorial, norm=batch_norm),
    "ln-cifar-tutorial": partial(cifar_tutorial, norm=layer_norm),
    "tf-tutorial": tf_tutorial,
    "bn-tf-tutorial": partial(tf_tutorial, norm=batch_norm),
    "ln-tf-tutorial": partial(tf_tutorial, norm=layer_norm),
    "resnet-18": resnet,
    "resnet-18-mod": partial(resnet, last_norm=False),
    "bn-resnet-18": partial(resnet, normalised_logits=True),
    "vgg-16": vgg,
    "vgg-16-mod": partial(vgg, last_norm=False),
    "bn-vgg-16": partial(vgg, normalised_logits=True),
    "light-vgg": light_vgg,
    "bn-light-vgg": partial(light_vgg, norm=batch_norm),
    "ln-light-vgg": partial(light_vgg, norm=layer_norm),
    "bilstm-dl": bilstm_dl,
    "ln-bilstm-dl": ln_bilstm_dl,
    "lipschitz-linear": lipschitz_linear,
    "lipschitz-dense": lipschitz_dense,
    "lipschitz-rows": lipschitz_rows,
    "lipschitz-patch": lipschitz_patch,
    "lipschitz-mixer": lipschitz_mixer,
    "dct-lipschitz-dense": dct_lipschitz_dense,
    "scattering-lipschitz-linear": scattering_lipschitz_linear,
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
    try:
        with torch.no_grad(), in_evaluation(model):
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


def projected(name: str, shape: Shape, classes: int, components: int) -> FixedFeatures:
    """A model behind a fixed projection of the flattened example, whose weight is yet to be set: (components, numbers).

    Raises:
        ValueError: there are more components than numbers in an example, or the model does not fit them.
    """
    if components > numbers_of(shape):
        raise ValueError(f"expected components <= {numbers_of(shape)}, the numbers of an example, got {components}")
    projection = nn.Linear(numbers_of(shape), components, bias=False).requires_grad_(False)
    return FixedFeatures(nn.Sequential(nn.Flatten(), projection), build(name, (components,), classes))
