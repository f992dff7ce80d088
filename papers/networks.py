"""Networks of the papers, under names that a recipe can give once this module is imported."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

from noisette.nn.models import REGISTRY, BuiltIn, Norm, Shape, batch_norm, layer_norm, resnet
from noisette.nn.models.networks import Part, need_axes, need_images, normalised, numbers_of, sequence

Activation = Callable[[], nn.Module]
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def linears(
    layers: Sequence[nn.Linear], norm: Norm | None, activation: Activation = nn.ReLU, *, normalised_logits: bool
) -> nn.Sequential:
    """Linear layers with activations between them; each is followed by a norm, the last if ``normalised_logits``."""
    parts: list[Part] = []
    for k, layer in enumerate(layers[:-1], 1):
        parts += [*normalised(f"fc{k}", layer, norm), (f"act{k}", activation())]
    return sequence([*parts, *normalised("scores", layers[-1], norm if normalised_logits else None)])


def truncated_normal(layer: Layer, std: float, bias: float = 0.0) -> Layer:
    """The layer, with its weights drawn from a normal distribution truncated at 2 std, and constant biases."""
    nn.init.trunc_normal_(layer.weight, std=std, a=-2 * std, b=2 * std)
    if layer.bias is not None:
        nn.init.constant_(layer.bias, bias)
    return layer


def mlp1000(shape: Shape, classes: int, *, units: int = 1000) -> nn.Module:
    """One hidden layer of ReLU units, without biases: on 60 principal components, the MNIST network of the paper.

    Initial weights are normal with variance 1 / inputs, truncated at two standard deviations.
    Source: Abadi et al. 2016, section 5.2, and their published code.
    """
    numbers = numbers_of(shape)
    return nn.Sequential(
        nn.Flatten(),
        truncated_normal(nn.Linear(numbers, units, bias=False), 1 / math.sqrt(numbers)),
        nn.ReLU(),
        truncated_normal(nn.Linear(units, classes, bias=False), 1 / math.sqrt(units)),
    )


def lenet_300_100(
    shape: Shape,
    classes: int,
    *,
    norm: Norm | None = None,
    activation: Activation = nn.ReLU,
    normalised_logits: bool = True,
) -> nn.Module:
    """Two hidden layers of 300 and 100 units: 266,610 parameters for 28 x 28 pixels and 10 classes.

    With a norm, each linear layer is followed by one, the last only if ``normalised_logits``.

    Source: LeCun et al. 1998; Davody et al. 2020, table 1.
    """
    layers = [nn.Linear(*widths) for widths in pairwise([numbers_of(shape), 300, 100, classes])]
    head = linears(layers, norm, activation, normalised_logits=normalised_logits)
    return sequence([("features", nn.Flatten()), ("head", head)])


def lenet_5(
    shape: Shape,
    classes: int,
    *,
    norm: Norm | None = None,
    activation: Activation = nn.ReLU,
    normalised_logits: bool = True,
) -> nn.Module:
    """Two convolutions, each with max pooling, and three linear layers: 61,706 parameters on MNIST.

    With a norm, each convolution and linear layer is followed by one, the last only if ``normalised_logits``.

    Source: LeCun et al. 1998; Davody et al. 2020, table 1.

    Raises:
        ValueError: examples are not images of 12 x 12 pixels or more.
    """
    need_images("lenet-5", shape, pixels=12)
    features = [
        *normalised("conv1", nn.Conv2d(shape[0], 6, 5, padding=2), norm),
        ("act1", activation()),
        ("pool1", nn.MaxPool2d(2)),
        *normalised("conv2", nn.Conv2d(6, 16, 5), norm),
        ("act2", activation()),
        ("pool2", nn.MaxPool2d(2)),
        ("flat", nn.Flatten()),
    ]
    height, width = ((pixels // 2 - 4) // 2 for pixels in shape[1:])
    layers = [nn.Linear(*widths) for widths in pairwise([16 * height * width, 120, 84, classes])]
    head = linears(layers, norm, activation, normalised_logits=normalised_logits)
    return sequence([("features", sequence(features)), ("head", head)])


_CROP = 24  # pixels a side of the part of the image that the networks use
_FEATURES = 64 * (_CROP // 4) ** 2  # after the second pooling


def cifar_tutorial(
    shape: Shape, classes: int, *, norm: Norm | None = None, normalised_logits: bool = True
) -> nn.Module:
    """Two convolutions and three linear layers on the central 24 x 24 pixels: the CIFAR-10 network of the paper.

    Its parts are called ``features`` (``conv1``, ``conv2``) and ``head`` (``fc1``, ``fc2``, ``scores``). The paper
    learned the features from CIFAR-100, and only the head privately: train ``cifar_tutorial((3, 32, 32), 100)`` without
    privacy for 100 epochs of SGD in batches of 128, momentum 0.9, a learning rate of 0.1 with cosine decay to 0, images
    shifted and mirrored at random, and save its state dict without ``head.scores`` as a file of safetensors. The paper
    distorted its training images at random, which this network does not. With a norm, each convolution and linear layer
    is followed by one, the last only if ``normalised_logits``.

    Source: Abadi et al. 2016, section 5.3; initial weights are those of the TensorFlow tutorial that it builds on.

    Raises:
        ValueError: examples are not images of 24 x 24 pixels or more.
    """
    need_images("cifar-tutorial", shape, pixels=_CROP)
    features = [
        *_first(shape[0], norm),
        ("pool1", nn.MaxPool2d(2)),
        *_second(norm),
        ("pool2", nn.MaxPool2d(2)),
        ("flat", nn.Flatten()),
    ]
    return sequence([("features", sequence(features)), ("head", _head(384, classes, norm, normalised_logits))])


def tf_tutorial(shape: Shape, classes: int, *, norm: Norm | None = None, normalised_logits: bool = True) -> nn.Module:
    """The network of the TensorFlow tutorial itself: 1,068,298 parameters for 10 classes of colour images.

    Unlike in :func:`cifar_tutorial`, pooling windows overlap, local response normalisation follows each convolution,
    and the second linear layer has 192 units.

    Source: the code that Abadi et al. 2016 and Davody et al. 2020 build on; Krizhevsky et al. 2012, section 3.3, for
    response normalisation.

    Raises:
        ValueError: examples are not images of 24 x 24 pixels or more.
    """
    need_images("tf-tutorial", shape, pixels=_CROP)
    features = [
        *_first(shape[0], norm),
        ("pool1", nn.MaxPool2d(3, 2, ceil_mode=True)),
        ("responses1", _responses()),
        *_second(norm),
        ("responses2", _responses()),
        ("pool2", nn.MaxPool2d(3, 2, ceil_mode=True)),
        ("flat", nn.Flatten()),
    ]
    return sequence([("features", sequence(features)), ("head", _head(192, classes, norm, normalised_logits))])


def _first(channels: int, norm: Norm | None) -> list[Part]:
    """Central crop, standardisation of each image, and the first convolution."""
    return [
        ("crop", CentreCrop(_CROP)),
        ("standardised", nn.GroupNorm(1, channels, affine=False)),
        *normalised("conv1", truncated_normal(nn.Conv2d(channels, 64, 5, padding=2), 0.05), norm),
        ("act1", nn.ReLU()),
    ]


def _second(norm: Norm | None) -> list[Part]:
    layer = truncated_normal(nn.Conv2d(64, 64, 5, padding=2), 0.05, bias=0.1)
    return [*normalised("conv2", layer, norm), ("act2", nn.ReLU())]


def _responses() -> nn.Module:
    """Over nine channels; torch divides ``alpha`` by their number."""
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)


def _head(units: int, classes: int, norm: Norm | None, normalised_logits: bool) -> nn.Module:
    hidden = [truncated_normal(nn.Linear(*widths), 0.04, bias=0.1) for widths in pairwise([_FEATURES, 384, units])]
    scores = truncated_normal(nn.Linear(units, classes), 1 / units)
    return linears([*hidden, scores], norm, normalised_logits=normalised_logits)


class CentreCrop(nn.Module):
    """The central square of images, of ``side`` pixels a side."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        top, left = ((pixels - self.side) // 2 for pixels in x.shape[-2:])
        return x[..., top : top + self.side, left : left + self.side]


def resnet_of_table_3(
    shape: Shape, classes: int, *, width: int = 64, last_norm: bool = True, normalised_logits: bool = False
) -> nn.Module:
    """ResNet-18 without the norm behind its very last convolution ("mod"), or with one on the scores.

    Source: Davody et al. 2020, table 1.
    """
    model = resnet(shape, classes, width=width)
    if not last_norm:
        model.get_submodule("features.blocks.7.body").add_module("conv2_norm", nn.Identity())
    if normalised_logits:
        model.get_submodule("head").add_module("scores_norm", batch_norm(classes, 0))
    return model


def vgg(
    shape: Shape,
    classes: int,
    *,
    depth: int = 16,
    width: int = 64,
    norm: Norm = batch_norm,
    last_norm: bool = True,
    normalised_logits: bool = False,
) -> nn.Module:
    """A VGG with norms and one linear layer: 14,728,266 parameters for 10 classes of 3 x 32 x 32 at depth 16.

    Args:
        shape: (channels, height, width) of one image, 32 x 32 in the paper, which is the minimum.
        classes: number of scores for each image.
        depth: 11, 13, 16 or 19.
        width: channels of the first convolution.
        norm: after each convolution.
        last_norm: False leaves out the norm after the last convolution ("mod" in Davody et al. 2020).
        normalised_logits: True adds a norm after the linear layer.

    Source: Simonyan & Zisserman 2015; Davody et al. 2020, table 3.

    Raises:
        ValueError: examples are not images of 32 x 32 pixels or more.
    """
    need_images("vgg", shape, pixels=32)
    features = vgg_features(depth, norm, channels=shape[0], width=width)
    if not last_norm:
        features[-3] = nn.Identity()
    numbers = 8 * width * (shape[1] // 32) * (shape[2] // 32)
    head = linears([nn.Linear(numbers, classes)], norm, normalised_logits=normalised_logits)
    return sequence([("features", features.append(nn.Flatten())), ("head", head)])


def light_vgg(
    shape: Shape, classes: int, *, width: int = 64, norm: Norm | None = None, normalised_logits: bool = False
) -> nn.Module:
    """Eight convolutions in three stages, global average pooling, and two linear layers: 2,462,282 parameters.

    With a norm, each convolution and linear layer is followed by one, the last only if ``normalised_logits``.

    Source: Davody et al. 2020, table 1.

    Raises:
        ValueError: examples are not images of 8 x 8 pixels or more.
    """
    need_images("light-vgg", shape, pixels=8)
    convolutions = _convolutions(shape[0], [(2, width), (2, 2 * width), (4, 4 * width)], norm)
    features = sequence([*convolutions, ("mean", nn.AdaptiveAvgPool2d(1)), ("flat", nn.Flatten())])
    layers = [nn.Linear(4 * width, 8 * width), nn.Linear(8 * width, classes)]
    return sequence([("features", features), ("head", linears(layers, norm, normalised_logits=normalised_logits))])


def vgg_features(depth: int, norm: Norm, *, channels: int = 3, width: int = 64) -> nn.Sequential:
    """The convolutions with pooling: 8 ``width`` channels, each side 1 / 32 of the image's."""
    widths = (width, 2 * width, 4 * width, 8 * width, 8 * width)
    return sequence(_convolutions(channels, list(zip(_VGGS[depth], widths, strict=True)), norm))


_VGGS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def _convolutions(channels: int, stages: Sequence[tuple[int, int]], norm: Norm | None) -> list[Part]:
    """For each stage (count, width), ``count`` convolutions of ``width`` channels, then pooling."""
    parts: list[Part] = []
    for stage, (count, width) in enumerate(stages, 1):
        for k in range(1, count + 1):
            layer = nn.Conv2d(channels, width, 3, padding=1)
            parts += [*normalised(f"conv{stage}_{k}", layer, norm), (f"act{stage}_{k}", nn.ReLU())]
            channels = width
        parts.append((f"pool{stage}", nn.MaxPool2d(2)))
    return parts


_UNITS = 32  # in each direction


def bilstm_dl(shape: Shape, classes: int, *, dropout: float = 0.2) -> nn.Module:
    """A bidirectional LSTM, dropout, and a linear layer: 34,564 parameters for 100 dimensions and 4 classes.

    The linear layer has as inputs the last states of 32 units that read forwards and of 32 that read backwards.

    Args:
        shape: (tokens, dimensions) of one text: each token is a word vector, from fixed embeddings for example.
        classes: number of scores for each text.
        dropout: probability of dropping each of the 64 states in training. The 0.8 in the authors' code is taken as the
            probability of keeping one.

    Source: Davody et al. 2020, table 1 and published code.

    Raises:
        ValueError: examples are not sequences of vectors.
    """
    reader = LastStates(nn.LSTM(_word_size("bilstm-dl", shape), _UNITS, batch_first=True, bidirectional=True))
    return sequence([("reader", reader), ("dropout", nn.Dropout(dropout)), ("scores", nn.Linear(2 * _UNITS, classes))])


def ln_bilstm_dl(shape: Shape, classes: int, *, dropout: float = 0.2) -> nn.Module:
    """:func:`bilstm_dl` with :class:`LayerNormLSTM`, and layer norm without scale and shift on the scores.

    Source: Davody et al. 2020, table 1 and published code.

    Raises:
        ValueError: examples are not sequences of vectors.
    """
    word = _word_size("ln-bilstm-dl", shape)
    reader = BothWays(LayerNormLSTM(word, _UNITS), LayerNormLSTM(word, _UNITS))
    return sequence(
        [
            ("reader", reader),
            ("dropout", nn.Dropout(dropout)),
            ("scores", nn.Linear(2 * _UNITS, classes)),
            ("scores_norm", nn.LayerNorm(classes, elementwise_affine=False)),
        ]
    )


class LastStates(nn.Module):
    """The last hidden states of a one-layer LSTM, directions concatenated: (b, tokens, dimensions) to (b, units)."""

    def __init__(self, lstm: nn.LSTM) -> None:
        super().__init__()
        self.lstm = lstm

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(self.lstm(x)[1][0].unbind(), 1)


class BothWays(nn.Module):
    """One module on a sequence (b, tokens, ...) and another on the reversed sequence, outputs concatenated."""

    def __init__(self, onward: nn.Module, backward: nn.Module) -> None:
        super().__init__()
        self.onward, self.backward = onward, backward

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.onward(x), self.backward(x.flip(1))], 1)


class LayerNormLSTM(nn.Module):
    """The last hidden state of an LSTM with layer norms, (b, tokens, inputs) to (b, units).

    Layer norms apply to the contributions of the input and of the hidden state to the four gates, and to the cell
    before its tanh.

    Source: Ba et al. 2016, supplement.
    """

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.from_input, self.from_hidden = nn.Linear(inputs, 4 * units), nn.Linear(units, 4 * units)
        self.input_norm, self.hidden_norm = nn.LayerNorm(4 * units), nn.LayerNorm(4 * units)
        self.cell_norm = nn.LayerNorm(units)

    def forward(self, x: Tensor) -> Tensor:
        hidden = cell = x.new_zeros(len(x), self.from_hidden.in_features)
        for from_input in self.input_norm(self.from_input(x)).unbind(1):
            gates = from_input + self.hidden_norm(self.from_hidden(hidden))
            input_gate, forget_gate, candidate, output_gate = gates.chunk(4, 1)
            cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
            hidden = output_gate.sigmoid() * self.cell_norm(cell).tanh()
        return hidden


def _word_size(name: str, shape: Shape) -> int:
    need_axes(name, shape, 2, "texts as word vectors (tokens, dimensions)")
    return shape[1]


_VARIANTS = (("", "", None), ("bn-", " with batch norm", batch_norm), ("ln-", " with layer norm", layer_norm))
_WITH_NORMS = {
    "lenet-300-100": (lenet_300_100, "two hidden layers of 300 and 100 units"),
    "lenet-5": (lenet_5, "two convolutions and three linear layers"),
    "cifar-tutorial": (cifar_tutorial, "the CIFAR-10 network of Abadi et al. 2016"),
    "tf-tutorial": (tf_tutorial, "the CIFAR-10 network of the TensorFlow tutorial"),
    "light-vgg": (light_vgg, "eight convolutions and two linear layers"),
}
REGISTRY.update(
    {
        f"{prefix}{name}": BuiltIn(partial(factory, norm=norm), f"{about}{added}")
        for name, (factory, about) in _WITH_NORMS.items()
        for prefix, added, norm in _VARIANTS
    }
)
for _name, _network in (("resnet-18", resnet_of_table_3), ("vgg-16", vgg)):
    REGISTRY[f"{_name}-mod"] = BuiltIn(partial(_network, last_norm=False), f"{_name} without its last batch norm")
    REGISTRY[f"bn-{_name}"] = BuiltIn(
        partial(_network, normalised_logits=True), f"{_name} with batch norm on the scores"
    )
REGISTRY["mlp1000"] = BuiltIn(mlp1000, "one hidden layer of 1,000 ReLU units (Abadi et al. 2016)")
REGISTRY["vgg-16"] = BuiltIn(vgg, "VGG-16 for 32 x 32 pixels, with batch norm")
REGISTRY["bilstm-dl"] = BuiltIn(bilstm_dl, "bidirectional LSTM for texts")
REGISTRY["ln-bilstm-dl"] = BuiltIn(ln_bilstm_dl, "bidirectional LSTM with layer norm")
