"""Built-in networks for images, texts and tables: trained from scratch, on fixed features, and 1-Lipschitz ones."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from noisette.data.built_in_images import shaded_leaves
from noisette.data.words import frequent_words, number_of
from noisette.lipschitz.layers import GroupSort2, LayerCentering, SpectralLinear, SphereInput
from noisette.lipschitz.projections import FrobeniusBall
from noisette.lipschitz.propagation import output_shape
from noisette.nn.features import MirrorAverage, PatchFeatures, Scattering2d, Standardise, Whitening, WordCounts

__all__ = ["Centred", "FixedFeatures", "Norm", "PatchScale", "Shape", "batch_norm", "cnn", "layer_norm"]
__all__ += ["linear", "lipschitz_dense", "lipschitz_linear", "mlp", "patches_and_scattering"]
__all__ += ["ranked_word_counts", "resnet", "scattering", "scattering_lipschitz_linear", "standardised", "table"]
__all__ += ["WordTransformer", "whitened", "word_counts"]

_LEAST_NORM = 1e-6
Shape = Sequence[int]  # of one example: (features,) or (channels, height, width)


def numbers_of(shape: Shape) -> int:
    """The number of values of one example."""
    return torch.Size(shape).numel()


def need_axes(name: str, shape: Shape, axes: int, kind: str) -> None:
    """Raise ValueError unless examples have this many axes; ``kind`` describes such examples."""
    if len(shape) != axes:
        of_rows = "; for rows of numbers take table, linear or mlp" if len(shape) == 1 else ""
        raise ValueError(f"the model {name!r} needs {kind}, got examples of shape {tuple(shape)}{of_rows}")


def need_images(name: str, shape: Shape, *, pixels: int = 1) -> None:
    """Raise ValueError unless examples are images of at least this many pixels a side."""
    need_axes(name, shape, 3, "images (channels, height, width)")
    if min(shape[1:]) < pixels:
        raise ValueError(f"the model {name!r} needs images of {pixels} x {pixels} pixels or more, got {tuple(shape)}")


Norm = Callable[[int, int], nn.Module]  # (channels, axes of positions after the channels: 2 for images, else 0)
Part = tuple[str, nn.Module]


def sequence(parts: Iterable[Part]) -> nn.Sequential:
    """The parts one after the other, by name."""
    return nn.Sequential(OrderedDict(parts))


def normalised(name: str, layer: nn.Conv2d | nn.Linear, norm: Norm | None) -> list[Part]:
    """A layer, followed by a norm of its outputs if ``norm`` is given."""
    if norm is None:
        return [(name, layer)]
    outputs = (layer.out_channels, 2) if isinstance(layer, nn.Conv2d) else (layer.out_features, 0)
    return [(name, layer), (f"{name}_norm", norm(*outputs))]


def batch_norm(channels: int, axes: int) -> nn.Module:
    """Batch norm, which mixes examples; :func:`noisette.nn.convert_batch_norm` replaces it."""
    return nn.BatchNorm2d(channels) if axes else nn.BatchNorm1d(channels)


def layer_norm(channels: int, axes: int) -> nn.Module:
    """Norm over all values of one example, with a scale and a shift for each channel."""
    return nn.GroupNorm(1, channels) if axes else nn.LayerNorm(channels)


class FixedFeatures(nn.Module):
    """A model whose first part is fixed, so that its outputs can be computed once for a whole data set.

    The fixed part is always in evaluation mode: dropout is off and running statistics do not change.

    Guarantee: ``features`` has no trainable parameters and treats each example alone, so computing it in advance does
    not change what training reveals.
    """

    def __init__(self, features: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.features, self.head = features, head
        self.train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.features.eval()
        return self


def standardised(model: FixedFeatures, public: Tensor) -> FixedFeatures:
    """The model with its features standardised by those of public examples, which get no guarantee."""
    return FixedFeatures(nn.Sequential(model.features, Standardise.of_public(public)), model.head)


def whitened(model: FixedFeatures, whitening: Whitening) -> FixedFeatures:
    """The model with its features whitened in front of a new linear layer; ValueError if it trains more than one."""
    if not isinstance(model.head, nn.Linear):
        raise ValueError(
            "whitened features are for a model whose trained part is one linear layer, such as scattering; this one "
            f"trains a {type(model.head).__name__}"
        )
    head = nn.Linear(len(whitening.components), model.head.out_features, device=model.head.weight.device)
    return FixedFeatures(nn.Sequential(model.features, whitening), head)


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(numbers_of(shape), classes))


def mlp(shape: Shape, classes: int) -> nn.Module:
    """Two hidden layers of 128 tanh units."""
    first, second = nn.Linear(numbers_of(shape), 128), nn.Linear(128, 128)
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.Tanh(), nn.Linear(128, classes))


class UnitNorm(nn.Module):
    """Each row is divided by its Euclidean norm, so that no row has a larger gradient for its size alone.

    >>> UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.normalize(x, dim=1, eps=_LEAST_NORM)


def table(shape: Shape, classes: int) -> nn.Module:
    """A hidden layer of 64 tanh units, brought to norm one, and scores that begin at zero.

    The gradient of the scores' layer has a norm of at most 2, so clipping at 2 does not favour frequent classes.
    """
    scores = nn.Linear(64, classes)
    for p in scores.parameters():
        nn.init.zeros_(p)
    return nn.Sequential(nn.Flatten(), nn.Linear(numbers_of(shape), 64), nn.Tanh(), UnitNorm(), scores)


def cnn(shape: Shape, classes: int) -> nn.Module:
    """Two convolutions with tanh (Papernot et al. 2021), then two linear layers; for images of 8 x 8 pixels or more."""
    need_images("cnn", shape)
    if max(shape[1:]) < 16:
        convolutions = [
            *(nn.Conv2d(shape[0], 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Tanh()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(8, 32), nn.Tanh()),
        ]
    else:
        convolutions = [
            *(nn.Conv2d(shape[0], 16, 8, stride=2, padding=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1)),
        ]
    features = nn.Sequential(Centred(), *convolutions)
    flat = numbers_of(output_shape(features, shape))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(flat, 32), nn.Tanh(), nn.Linear(32, classes))


def scattering(shape: Shape, classes: int) -> nn.Module:
    """Fixed wavelet features, normalised for each example, and one linear layer (Tramèr & Boneh 2021)."""
    need_images("scattering", shape)
    coefficients = Scattering2d()
    norm = nn.GroupNorm(27, coefficients.channels * shape[0], affine=False)
    features = nn.Sequential(coefficients, norm, nn.Flatten())
    return FixedFeatures(features, nn.Linear(numbers_of(output_shape(features, shape)), classes))


class Centred(nn.Module):
    """Maps pixels from [0, 1] to [-1, 1]."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x - 1


def resnet(shape: Shape, classes: int, *, width: int = 64, norm: Norm = batch_norm) -> nn.Module:
    """A ResNet-18 with a first convolution of 3 x 3 and no pooling before the stages, for images of 32 x 32 pixels.

    Convolutions have no biases; shortcuts that change the shape are a 1 x 1 convolution with a norm. ``width`` is the
    channels of the first stage, and each of the other three has twice as many as the one before.

    Source: He et al. 2016, section 4.2.
    """
    need_images("resnet", shape)
    blocks = residual_blocks(basic_block, (2, 2, 2, 2), width, norm)
    features = [
        *normalised("conv", nn.Conv2d(shape[0], width, 3, padding=1, bias=False), norm),
        ("act", nn.ReLU()),
        ("blocks", nn.Sequential(*blocks)),
        ("pool", nn.AdaptiveAvgPool2d(1)),
        ("flat", nn.Flatten()),
    ]
    head = sequence([("scores", nn.Linear(blocks[-1].channels, classes))])
    return sequence([("features", sequence(features)), ("head", head)])


class Residual(nn.Module):
    """The ReLU of the sum of a body and a shortcut around it; the output has ``channels`` channels."""

    def __init__(self, body: nn.Sequential, shortcut: nn.Module, channels: int) -> None:
        super().__init__()
        self.body, self.shortcut = body, shortcut
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.body(x) + self.shortcut(x))


MakeBlock = Callable[[int, int, int, Norm], Residual]  # (input channels, width, stride, norm)


def residual_blocks(block: MakeBlock, counts: Sequence[int], width: int, norm: Norm) -> list[Residual]:
    """The blocks of all stages, so many of each, for an input of ``width`` channels."""
    blocks: list[Residual] = []
    channels = width
    for stage, count in enumerate(counts):
        for k in range(count):
            blocks.append(block(channels, width * 2**stage, 2 if k == 0 and stage > 0 else 1, norm))
            channels = blocks[-1].channels
    return blocks


def basic_block(channels: int, width: int, stride: int, norm: Norm) -> Residual:
    """Two convolutions of 3 x 3."""
    body = [
        *convolution("conv1", channels, width, 3, stride, norm),
        ("act1", nn.ReLU()),
        *convolution("conv2", width, width, 3, 1, norm),
    ]
    return Residual(sequence(body), shortcut(channels, width, stride, norm), width)


def shortcut(channels: int, out: int, stride: int, norm: Norm) -> nn.Module:
    """What leads around a block: its input, or where the shape changes a 1 x 1 convolution with a norm."""
    if stride == 1 and channels == out:
        return nn.Identity()
    return sequence(convolution("conv", channels, out, 1, stride, norm))


def convolution(name: str, channels: int, out: int, size: int, stride: int, norm: Norm) -> list[Part]:
    """A convolution without bias that keeps the size but for its stride, and its norm."""
    return normalised(name, nn.Conv2d(channels, out, size, stride, size // 2, bias=False), norm)


_WIDTH, _HEADS = 64, 4
_START = 0.1  # standard deviation of the first word vectors


class WordTransformer(nn.Module):
    """Word and place vectors of 64 numbers, one block of 4 heads, and the mean over the words (0 is padding)."""

    def __init__(self, shape: Shape, classes: int, *, words: int = 4096) -> None:
        super().__init__()
        need_axes("transformer", shape, 1, "texts as numbers of words (tokens,)")
        self.word = nn.Embedding(words, _WIDTH)
        nn.init.normal_(self.word.weight, std=_START)  # so that what is learned of a word soon exceeds where it started
        self.place = nn.Parameter(0.02 * torch.randn(shape[0], _WIDTH))
        more = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.block = nn.TransformerEncoderLayer(_WIDTH, _HEADS, 2 * _WIDTH, **more)
        self.norm = nn.LayerNorm(_WIDTH)
        self.scores = nn.Linear(_WIDTH, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        used = numbers != 0
        # An empty text attends to its first place: a softmax over none is no number.
        unattended = ~(used | (torch.arange(used.shape[1], device=used.device) == 0))
        x = self.block(self.word(numbers) + self.place, src_key_padding_mask=unattended)
        return self.scores(mean_of_used(self.norm(x), used))


def mean_of_used(x: Tensor, used: Tensor) -> Tensor:
    """The mean over the used places, (b, width); zero where there is none."""
    weights = used.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


_POWER = 0.3  # of the rank; by it the weight of a word grows from 1 for the most frequent one to 8 for an unlisted one


def word_counts(shape: Shape, classes: int, *, words: int = 4096, ranked: bool = False) -> FixedFeatures:
    """The roots of a text's counts of words, brought to length one, and one linear layer; the order is not used.

    Texts, (tokens,), are numbers of words below ``words``, with 0 for padding. If ``ranked``, common English words have
    less weight, by their rank in a public list; the words must be numbered by noisette's hash.
    """
    need_axes("word-counts", shape, 1, "texts as numbers of words (tokens,)")
    weights = _rank_weights(words) if ranked else torch.ones(words)
    return FixedFeatures(WordCounts(weights), nn.Linear(words, classes, bias=False))


ranked_word_counts = partial(word_counts, ranked=True)


def _rank_weights(words: int) -> Tensor:
    """rank^0.3 for each number of a word, (words,), about its frequency to the power of -0.3 (Zipf's law)."""
    if words < 2:
        raise ValueError(f"expected words >= 2, of which 0 is padding, got words={words}")
    common = frequent_words()
    ranks = torch.full((words,), len(common) + 1.0)
    for rank, word in reversed(list(enumerate(common, start=1))):  # of words with one number the most frequent counts
        ranks[number_of(word, words)] = rank
    return ranks**_POWER


_IMAGES, _SIDE = 2000, 32
_ACROSS = 4  # scattering coefficients are averages over this many parts of the image in each direction


class PatchScale(NamedTuple):
    """Patches of one size, of images that are averaged over squares first."""

    averaged: int  # pixels on a side of such a square, which becomes one pixel
    filters: int  # patches of the dictionary
    side: int = 6  # height and width of a patch, in averaged pixels
    stride: int = 1  # averaged pixels between the patches of an image


SCALES = (PatchScale(1, 400, stride=2), PatchScale(2, 400))


def patches_and_scattering(shape: Shape, classes: int, *, scales: tuple[PatchScale, ...] = SCALES) -> nn.Module:
    """Resemblances to patches of shaded leaves at several scales beside scattering coefficients, and one linear layer.

    Both are averaged over an image and its mirror image, so that these have the same scores, and those of a scale are
    normalised for each example; see :class:`noisette.nn.PatchFeatures`. The dictionaries come from the same images of a
    random process each time, so there is no record to protect. The coefficients are averaged over sixteenths of the
    image, whose sides are multiples of four.
    """
    need_images("patches-and-scattering", shape, pixels=12)
    coefficients = Scattering2d()
    averaged = nn.Sequential(coefficients, nn.AdaptiveAvgPool2d(_ACROSS))
    leaves = torch.as_tensor(shaded_leaves(_IMAGES, 0, side=_SIDE, channels=shape[0]))
    parts: list[nn.Module] = []
    for squares, filters, side, stride in scales:
        images = nn.functional.avg_pool2d(leaves, squares)
        of_patches = PatchFeatures.of_public(images, filters, side=side, stride=stride)
        smaller = nn.AvgPool2d(squares) if squares > 1 else nn.Identity()
        parts.append(nn.Sequential(smaller, *_normalised(MirrorAverage(of_patches), 2 * filters)))
    parts.append(_normalised(MirrorAverage(averaged), shape[0] * coefficients.channels))
    features = _SideBySide(parts)
    return FixedFeatures(features, nn.Linear(numbers_of(output_shape(features, shape)), classes))


def _normalised(features: nn.Module, channels: int) -> nn.Sequential:
    """Features (b, channels, ...), flat, those of each example with mean zero and variance one."""
    return nn.Sequential(features, nn.GroupNorm(1, channels, affine=False), nn.Flatten())


class _SideBySide(nn.ModuleList):
    """The outputs of several modules, one after the other."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([module(x) for module in self], 1)


def lipschitz_linear(shape: Shape, classes: int) -> FixedFeatures:
    """One linear layer on the values of an example; images are centred first."""
    return FixedFeatures(_centred(shape), linear_head(numbers_of(shape), classes))


def lipschitz_dense(shape: Shape, classes: int, *, units: Sequence[int] = (128,)) -> FixedFeatures:
    """Orthogonal layers with GroupSort2 between them, on the values of an example; images are centred first."""
    return FixedFeatures(_centred(shape), dense_head(numbers_of(shape), units, classes))


def scattering_lipschitz_linear(shape: Shape, classes: int) -> FixedFeatures:
    """One linear layer on scattering coefficients of the first order, best standardised by public examples."""
    need_images("scattering-lipschitz-linear", shape, pixels=12)
    coefficients = Scattering2d(order=1)
    return FixedFeatures(coefficients, linear_head(numbers_of(output_shape(coefficients, shape)), classes))


def _centred(shape: Shape) -> nn.Module:
    return LayerCentering(tuple(range(1, 1 + len(shape)))) if len(shape) > 1 else nn.Identity()


def linear_head(numbers: int, classes: int) -> nn.Sequential:
    """One linear layer on the sphere, with Frobenius norm at most one and initial weights of zero."""
    linear = SpectralLinear(numbers, classes, FrobeniusBall())
    nn.init.zeros_(linear.weight)
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), linear)


def dense_head(numbers: int, units: Sequence[int], classes: int) -> nn.Sequential:
    """Orthogonal layers of these widths, with GroupSort2 between them."""
    layers = [SpectralLinear(*widths) for widths in pairwise([numbers, *units, classes])]
    hidden = [part for layer in layers[:-1] for part in (layer, GroupSort2())]
    return nn.Sequential(nn.Flatten(), SphereInput(1.0), *hidden, layers[-1])
