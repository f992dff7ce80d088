"""Gaussian noise on weights: the parameters are means, and each forward pass uses weights drawn around them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from noisette.core.loss import outside
from noisette.errors import PrivacyError
from noisette.nn._time_steps import TimeSteps

_WEIGHTED = (
    nn.Linear,
    nn.Bilinear,
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.modules.rnn.RNNCellBase,
    nn.MultiheadAttention,
)


class WeightNoise:
    """Adds fresh Gaussian noise to the weights and biases of a model's layers, in each of its forward passes.

    The parameters are the means mu; a forward pass uses mu + sigma * eps, eps ~ N(0, I), in training and in evaluation
    mode. All examples of a batch share one draw. The gradient by mu is the gradient at the noisy weights. This is not a
    privacy mechanism: the noise is not related to data, and no epsilon follows from it.

    Linear, bilinear and convolutional layers, recurrent layers and cells, and the projections of attention have noise;
    norms, embeddings and the model's own parameters have none. Parameters, optimizers and the keys of the state dict do
    not change. A deep copy of the model draws its own noise. Noise depends on torch's random state
    (``torch.manual_seed``). In a private run all microbatches of a batch have one draw, which the run makes before it
    reads them, and recurrent layers have none at each time step.

    The noise is drawn before any other hook on the model runs, so the statistics of a public batch before a call
    (:class:`PublicBatchNorm`) are those of the weights of that call. Running averages of batch norm mix the statistics
    of many draws, so do not use them in evaluation mode. Checkpointed parts are recomputed with the noise of the last
    call, so run the backward pass before the next call.

    Args:
        model: any module; each call of it draws noise. A submodule that is called alone uses the noise of the last
            call. To add noise to a submodule only, pass that submodule.
        sigma: standard deviation of the noise, in units of the weights; 0 leaves the model unchanged.
        each_time_step: draw at each time step of a recurrent layer, and at each call of any other layer, instead of
            once for each call of the model. Recurrent layers are then computed step by step, which takes more time and
            memory, and statistics of a public batch are those of other draws.

    Source: Davody et al. 2020, section 2.

    Raises:
        ValueError: sigma is negative or not finite, the model has no such layer, or some cannot have noise (their
            weights have no shape yet, are computed from others, or have noise already); all such layers are listed.

    >>> model = nn.Linear(3, 1)
    >>> noise = WeightNoise(model, 0.1)
    >>> x = torch.ones(2, 3)
    >>> bool((model(x) == model(x)).any())
    False
    >>> noise.remove()
    >>> bool((model(x) == model(x)).all())
    True
    """

    def __init__(self, model: nn.Module, sigma: float, *, each_time_step: bool = False) -> None:
        if not 0 <= sigma < math.inf:
            raise ValueError(f"expected a finite sigma >= 0, got sigma={sigma}")
        layers = _layers(model)
        _check_layers(layers, in_steps=each_time_step)
        self.model = model
        self.sigma = sigma
        self._handles: list[Any] = []
        self._in_steps: list[nn.Module] = []
        if not sigma:
            return
        draw = Draw(sigma)
        for layer in layers.values():
            if each_time_step and isinstance(layer, nn.RNNBase):
                layer.forward = TimeSteps(layer, sigma)
                self._in_steps.append(layer)
                continue
            for part, name, mean in list(_means(layer)):
                part.register_buffer(_noise_name(name), torch.zeros_like(mean), persistent=False)
            if each_time_step:
                self._handles.append(layer.register_forward_pre_hook(draw))
            self._handles.append(layer.register_forward_pre_hook(_SetNoisy(draw)))
            self._handles.append(layer.register_forward_hook(_unset_noisy, always_call=True))
        if not each_time_step:
            self._handles.append(model.register_forward_pre_hook(draw, prepend=True))

    def remove(self) -> None:
        """Remove the noise; the model uses the means."""
        for handle in self._handles:
            handle.remove()
        for part, name, *_ in list(_noised(self.model)):
            delattr(part, _noise_name(name))
        for layer in self._in_steps:
            vars(layer).pop("forward", None)


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers with weights, by name, without those that are part of another such layer."""
    layers = {name: part for name, part in model.named_modules() if isinstance(part, _WEIGHTED)}
    inner = {part for layer in layers.values() for part in layer.modules() if part is not layer}
    return {name: layer for name, layer in layers.items() if layer not in inner}


def _means(layer: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """For each parameter that gets noise: the module that holds it, its name there, and the parameter."""
    for part in layer.modules():
        if isinstance(part, _WEIGHTED):
            yield from ((part, name, mean) for name, mean in part._parameters.items() if mean is not None)


def _noised(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor, Tensor]]:
    """The same with the buffer of its noise."""
    for part, name, mean in _means(module):
        if (noise := part._buffers.get(_noise_name(name))) is not None:
            yield part, name, mean, noise


def _noise_name(name: str) -> str:
    return f"{name}_noise"


@dataclass(eq=False)
class Draw:
    """A hook before a forward pass, which draws new noise for the module unless that of a batch is held."""

    sigma: float
    is_held: bool = field(default=False, init=False)

    def __reduce__(self) -> tuple[type[Draw], tuple[float]]:
        return Draw, (self.sigma,)  # a copy belongs to no batch

    def __call__(self, module: nn.Module, args: Any) -> None:
        if not self.is_held:
            self.draw(module)

    def hold(self, module: nn.Module) -> None:
        """Draw noise that all forward passes have until it is let go."""
        self.draw(module)
        self.is_held = True

    def let_go(self) -> None:
        """Draw for each forward pass again."""
        self.is_held = False

    def draw(self, module: nn.Module) -> None:
        """Draw new noise; a parameter that is shared by several layers gets one draw."""
        drawn: dict[int, Tensor] = {}
        # Outside of a vectorised loss, in which each example would have a draw of its own.
        with torch._C.DisableTorchFunction(), outside():
            for _, _, mean, noise in _noised(module):
                if (known := drawn.setdefault(id(mean), noise)) is noise:
                    noise.normal_(0.0, self.sigma)
                else:
                    noise.copy_(known)


@dataclass(eq=False)
class _SetNoisy:
    """A hook before a layer's forward pass, which makes its weights noisy."""

    draw: Draw  # of the whole model

    def __call__(self, layer: nn.Module, args: Any) -> None:
        """Set the noisy weights as attributes: these take precedence over the parameters, which stay registered."""
        for part, name, mean, noise in _noised(layer):
            vars(part)[name] = mean + noise

    def hold(self, module: nn.Module) -> None:
        """Check that the noise of this layer is held.

        Raises:
            PrivacyError: it is drawn by a module around the model of the run.
        """
        if not self.draw.is_held:
            raise PrivacyError(
                "the noise on weights is drawn by a module around the one that the run trains, so each of its calls "
                "would have other noise; call WeightNoise on the model that the bound is given, before it is wrapped"
            )

    def let_go(self) -> None:
        """Nothing is held here."""


def _unset_noisy(layer: nn.Module, args: Any, output: Any) -> None:
    for part, name, _ in _means(layer):
        vars(part).pop(name, None)


def _check_layers(layers: dict[str, nn.Module], *, in_steps: bool) -> None:
    if not layers:
        raise ValueError("the model has no linear, convolutional or recurrent layer to add noise to")
    found = {name: _problem(layer, in_steps=in_steps) for name, layer in layers.items()}
    if problems := [f"{name or 'the model'}: {problem}" for name, problem in found.items() if problem]:
        raise ValueError(f"{len(problems)} layers cannot have weight noise:\n  " + "\n  ".join(problems))


def _problem(layer: nn.Module, *, in_steps: bool) -> str:
    parts = [part for part in layer.modules() if isinstance(part, _WEIGHTED)]
    if any(is_lazy(mean) for _, _, mean in _means(layer)):
        return "its weights have no shape yet; call the model once to set it"
    if any(
        parametrize.is_parametrized(part) or any(isinstance(v, Tensor) for v in vars(part).values()) for part in parts
    ):
        return "its weights are computed from others; remove the parametrization first"
    if isinstance(vars(layer).get("forward"), TimeSteps):
        return "it has noise already; remove that first"
    if in_steps and isinstance(layer, nn.RNNBase) and not TimeSteps.fit(layer):
        return "a projection or a forward of its own cannot be computed step by step; use each_time_step=False"
    if taken := [_noise_name(name) for part, name, _ in _means(layer) if hasattr(part, _noise_name(name))]:
        return f"it has {', '.join(taken)} already; remove its noise first"
    return ""
