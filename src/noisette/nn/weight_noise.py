"""Recurrent layers computed step by step, with new weights drawn around the layer's parameters in each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from noisette.core.loss import outside
from noisette.errors import PrivacyError

F = nn.functional
_CELLS: dict[str, Callable[..., Any]] = {
    "LSTM": torch.lstm_cell,
    "GRU": torch.gru_cell,
    "RNN_TANH": torch.rnn_tanh_cell,
    "RNN_RELU": torch.rnn_relu_cell,
}


@dataclass(frozen=True, eq=False)
class TimeSteps:
    """Replaces the forward method of a recurrent layer, with the same arguments and results.

    Args:
        layer: ``nn.LSTM`` without projection, ``nn.GRU`` or ``nn.RNN``.
        sigma: standard deviation of the noise on weights and biases.
    """

    layer: nn.RNNBase
    sigma: float

    @staticmethod
    def fit(layer: nn.RNNBase) -> bool:
        """Whether the layer can be computed step by step: it has no projection and no forward method of its own."""
        return not layer.proj_size and type(layer).forward in (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)

    def hold(self, module: nn.Module) -> None:
        """Called where a private batch begins.

        Raises:
            PrivacyError: always, since which records share a draw would depend on how many come before them.
        """
        raise PrivacyError(
            "WeightNoise(each_time_step=True) of a recurrent layer draws noise for each microbatch anew, and which "
            "records share it depends on the others; leave each_time_step out, and the noise is that of the whole batch"
        )

    def let_go(self) -> None:
        """Nothing is held."""

    def __call__(self, input: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """What the layer returns for these arguments."""
        if isinstance(input, PackedSequence):
            return self._packed(input, hx)
        batch = 0 if self.layer.batch_first else 1
        if input.dim() == 2:
            output, last = self(input.unsqueeze(batch), _each(hx, lambda state: state.unsqueeze(1)))
            return output.squeeze(batch), _each(last, lambda state: state.squeeze(1))
        outputs, last = self._layers(input.unbind(1 - batch), hx, None)
        return torch.stack(outputs, 1 - batch), last

    def _packed(self, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
        """Sequences of several lengths, padded, so that each step computes all of them."""
        padded, lengths = pad_packed_sequence(PackedSequence(input.data, input.batch_sizes))  # longest first
        outputs, last = self._layers(padded.unbind(), _in_order(hx, input.sorted_indices), lengths)
        data = pack_padded_sequence(torch.stack(outputs), lengths).data
        return (
            PackedSequence(data, input.batch_sizes, input.sorted_indices, input.unsorted_indices),
            _in_order(last, input.unsorted_indices),
        )

    def _layers(self, steps: Sequence[Tensor], hx: Any, lengths: Tensor | None) -> tuple[list[Tensor], Any]:
        """Outputs (b, features) at each step, and the last states of every layer and direction."""
        layer, directions = self.layer, 2 if self.layer.bidirectional else 1
        if hx is None:
            zeros = steps[0].new_zeros(layer.num_layers * directions, len(steps[0]), layer.hidden_size)
            hx = (zeros, zeros) if layer.mode == "LSTM" else zeros
        last: list[Any] = []
        for number in range(layer.num_layers):
            if number and layer.dropout:
                steps = [F.dropout(x, layer.dropout, layer.training) for x in steps]
            outputs = []
            for direction in range(directions):
                first = _each(hx, lambda state: state[len(last)])
                found, states = self._direction(steps, first, layer.all_weights[len(last)], lengths, direction == 1)
                outputs.append(found)
                last.append(states)
            steps = [torch.cat(both, 1) for both in zip(*outputs, strict=True)]
        if layer.mode == "LSTM":
            return list(steps), tuple(torch.stack(states) for states in zip(*last, strict=True))
        return list(steps), torch.stack(last)

    def _direction(
        self, steps: Sequence[Tensor], states: Any, means: Sequence[Tensor], lengths: Tensor | None, backwards: bool
    ) -> tuple[list[Tensor], Any]:
        """One layer in one direction: its outputs in the order of time, and its last states."""
        outputs: list[Tensor] = []
        times = range(len(steps))
        for t in reversed(times) if backwards else times:
            with outside():  # of a vectorised loss, in which each example would have a draw of its own
                noises = [self.sigma * torch.randn_like(mean) for mean in means]
            weights = [mean + noise for mean, noise in zip(means, noises, strict=True)]
            new = _CELLS[self.layer.mode](steps[t], states, *weights)
            states = new if lengths is None else _where(lengths.to(steps[t].device) > t, new, states)
            outputs.append(states[0] if self.layer.mode == "LSTM" else states)
        return outputs[::-1] if backwards else outputs, states


def _each(states: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The function of the state, or of both states of an LSTM."""
    if isinstance(states, Tensor):
        return function(states)
    return None if states is None else tuple(function(state) for state in states)


def _in_order(states: Any, order: Tensor | None) -> Any:
    return states if order is None else _each(states, lambda state: state.index_select(1, order))


def _where(runs: Tensor, new: Any, old: Any) -> Any:
    """New states of the sequences that run, old ones of those that have ended or not begun."""
    if isinstance(new, Tensor):
        return torch.where(runs.unsqueeze(1), new, old)
    return tuple(_where(runs, *pair) for pair in zip(new, old, strict=True))


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
