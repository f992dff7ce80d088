"""Networks of the study, to be named in recipes: with constrained weights and, for tables, with unconstrained ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from noisette import errors as checks
from noisette.lipschitz import NormBound, Sensitivities, propagation
from noisette.lipschitz.propagation import Stretching
from noisette.nn.lipschitz import (
    GroupSort2,
    LayerCentering,
    MixerBlock,
    PatchConv2d,
    Scale,
    SpectralLinear,
    SphereInput,
)
from noisette.nn.models import REGISTRY, BuiltIn, FixedFeatures, Shape
from noisette.nn.models.networks import dense_head, linear_head, need_axes, need_images

_COSINES = 512
_BREADTH = 0.35  # standard deviation of the frequencies, for columns of deviation 1
_CUT, _COSINES_OF_IMAGES, _BREADTH_ON_THE_SPHERE = 8, 2000, 1.7


class AppendOne(Stretching):
    """Appends a one to each row: (b, n) to (b, n + 1).

    Rows that differ only in their norm become equal when they are projected to a sphere. With an appended one they stay
    different, and a linear layer has a bias.

    >>> AppendOne()(torch.tensor([[2.0, 3.0]])).tolist()
    [[2.0, 3.0, 1.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 1), value=1.0)

    def bound_forward(self, x: NormBound) -> NormBound:
        if len(x.shape) != 1:
            raise ValueError(f"AppendOne takes rows of numbers, got an example of shape {x.shape}")
        return NormBound(math.hypot(x.norm, 1.0), (x.shape[0] + 1,))


class DctCut(Stretching):
    """The ``k`` x ``k`` lowest frequencies of images by the orthonormal cosine transform: (b, c, h, w) to (b, c, k, k).

    Guarantee: an orthogonal projection, hence 1-Lipschitz; it does not depend on the data.
    Source: Ahmed, Natarajan & Rao 1974 (DCT-II).

    Raises:
        ValueError: k is not a positive integer, or is above the height or width of the images.

    >>> DctCut(2)(torch.ones(1, 1, 4, 4)).squeeze().tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        checks.count(k=k)
        self.k = k

    def forward(self, x: Tensor) -> Tensor:
        self.output_shape(tuple(x.shape[1:]))
        down, across = (_cosines(self.k, side).to(x) for side in x.shape[-2:])
        return down @ x @ across.T

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if len(shape) < 2 or min(shape[-2:]) < self.k:
            sides = " x ".join(map(str, shape[-2:]))
            raise ValueError(f"expected images of {self.k} x {self.k} pixels or more, got {sides}")
        return (*shape[:-2], self.k, self.k)


def _cosines(k: int, side: int) -> Tensor:
    """The k cosines of lowest frequency on ``side`` pixels, as orthonormal rows (k, side), double precision."""
    frequencies, pixels = torch.arange(k, dtype=torch.float64), torch.arange(side, dtype=torch.float64) + 0.5
    rows = torch.cos(math.pi / side * frequencies[:, None] * pixels) * math.sqrt(2 / side)
    rows[0] /= math.sqrt(2)
    return rows


class SignedRoots(nn.Module):
    """The square root of each number's size, with its sign: small numbers of a long column are told apart."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sign() * x.abs().sqrt()


class RandomCosines(nn.Module):
    """Cosines of random combinations of the columns: ``cos(x @ frequencies + phases)``; nothing is trained.

    Source: Rahimi & Recht 2007, whose sums of such cosines approximate a Gaussian kernel.
    """

    def __init__(self, columns: int, *, cosines: int = _COSINES, breadth: float = _BREADTH) -> None:
        super().__init__()
        self.frequencies: Tensor
        self.phases: Tensor
        self.register_buffer("frequencies", breadth * torch.randn(columns, cosines))
        self.register_buffer("phases", 2 * math.pi * torch.rand(cosines))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cos(x @ self.frequencies + self.phases)


def frequency_cosines(shape: Shape, classes: int) -> FixedFeatures:
    """A linear layer on random cosines of the 8 x 8 lowest frequencies of each channel of an image, on the sphere."""
    fixed = RandomCosines(shape[0] * _CUT**2, cosines=_COSINES_OF_IMAGES, breadth=_BREADTH_ON_THE_SPHERE)
    frequencies = nn.Sequential(LayerCentering((1, 2, 3)), DctCut(_CUT), nn.Flatten(), SphereInput(1.0))
    return FixedFeatures(nn.Sequential(frequencies, fixed), linear_head(_COSINES_OF_IMAGES, classes))


class Concat(nn.Module):
    """The outputs of several branches on the same input, concatenated along axis 1; other axes are equal.

    Source: squared norms of parts add up, so the concatenation of two 1-Lipschitz branches is sqrt(2)-Lipschitz.

    >>> Concat([nn.Identity(), nn.ReLU()])(torch.tensor([[-1.0]])).tolist()
    [[-1.0, 0.0]]
    """

    def __init__(self, branches: Iterable[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        if not self.branches:
            raise ValueError("Concat needs at least one branch, got none")

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)

    def bound_forward(self, x: NormBound) -> NormBound:
        parts = [propagation.forward(branch, x) for branch in self.branches]
        if len({part.shape[1:] for part in parts}) > 1 or not parts[0].shape:
            raise ValueError(f"outputs of shapes {[part.shape for part in parts]} cannot be concatenated along axis 1")
        norm = math.hypot(*(part.norm for part in parts))
        return NormBound(norm, (sum(part.shape[0] for part in parts), *parts[0].shape[1:]))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        # Each branch gets its part g_i of the gradient, and the input gets sum J_i' g_i. Its norm is at most
        # sum L_i |g_i| <= sqrt(sum L_i^2) g by Cauchy-Schwarz; a branch's own parameters see at most |g_i| <= g.
        found = [propagation.backward(branch, x, g) for branch in self.branches]
        return math.hypot(*(inner for inner, _ in found)), propagation.sum_sensitivities(own for _, own in found)


def lipschitz_rows(shape: Shape, classes: int, *, units: int = 64) -> FixedFeatures:
    """An orthogonal layer with GroupSort2, and a linear layer on its outputs and inputs, rows of numbers about 1."""
    need_axes("lipschitz-rows", shape, 1, "rows of numbers")
    numbers = shape[0] + 1
    hidden = nn.Sequential(SpectralLinear(numbers, units), GroupSort2())
    return FixedFeatures(
        AppendOne(),
        nn.Sequential(
            SphereInput(1.0),
            Concat([nn.Identity(), hidden]),
            Scale(math.sqrt(0.5)),
            SpectralLinear(numbers + units, classes),
        ),
    )


def dct_lipschitz_dense(shape: Shape, classes: int, *, k: int = 8, units: Sequence[int] = (128,)) -> FixedFeatures:
    """:func:`lipschitz_dense` on the k x k lowest frequencies of each channel of an image."""
    need_images("dct-lipschitz-dense", shape, pixels=k)
    frequencies = nn.Sequential(LayerCentering((1, 2, 3)), DctCut(k))
    return FixedFeatures(frequencies, dense_head(shape[0] * k * k, units, classes))


REGISTRY["lipschitz-rows"] = BuiltIn(lipschitz_rows, "1-Lipschitz network for tables of numbers")
REGISTRY["dct-lipschitz-dense"] = BuiltIn(dct_lipschitz_dense, "lipschitz-dense on low image frequencies")


def cosines(shape: Shape, classes: int) -> FixedFeatures:
    """A linear layer on random cosines of a row."""
    return FixedFeatures(RandomCosines(shape[0]), linear_head(_COSINES, classes))


def roots(shape: Shape, classes: int) -> FixedFeatures:
    """A linear layer on the signed square roots of a row and a constant."""
    return FixedFeatures(_roots(), linear_head(shape[0] + 1, classes))


def free_cosines(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`cosines` with unconstrained weights."""
    return FixedFeatures(RandomCosines(shape[0]), _free_head(_COSINES, classes))


def free_roots(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`roots` with unconstrained weights."""
    return FixedFeatures(_roots(), _free_head(shape[0] + 1, classes))


def lipschitz_mixer(shape: Shape, classes: int, *, channels: int = 64, blocks: int = 1) -> FixedFeatures:
    """An MLP-Mixer on patches of 4 x 4 pixels: orthogonal layers mix tokens, then channels.

    Source: Bethune et al. 2024, the network of their CIFAR-10 runs, without skip connections.
    """
    need_images("lipschitz-mixer", shape, pixels=4)
    if any(side % 4 for side in shape[1:]):
        raise ValueError(f"the model 'lipschitz-mixer' cuts images into patches of 4 x 4 pixels, got {tuple(shape)}")
    tokens = shape[1] * shape[2] // 16
    return FixedFeatures(
        LayerCentering((1, 2, 3)),
        nn.Sequential(
            SphereInput(1.0),
            PatchConv2d(shape[0], channels, patch=4),
            *(MixerBlock(tokens, channels) for _ in range(blocks)),
            nn.Flatten(),
            SpectralLinear(channels * tokens, classes),
        ),
    )


def narrow_mixer(shape: Shape, classes: int) -> FixedFeatures:
    """The mixer with half its channels, for a processor."""
    return lipschitz_mixer(shape, classes, channels=32)


def free_narrow(shape: Shape, classes: int) -> FixedFeatures:
    """:func:`lipschitz_rows` with unconstrained weights."""
    features, units = shape[0] + 1, 64
    hidden = nn.Sequential(nn.Linear(features, units, bias=False), GroupSort2())
    both = Concat([nn.Identity(), hidden])
    return FixedFeatures(
        AppendOne(), nn.Sequential(SphereInput(1.0), both, nn.Linear(features + units, classes, bias=False))
    )


REGISTRY["lipschitz-mixer"] = BuiltIn(lipschitz_mixer, "1-Lipschitz MLP-Mixer")


def named(name: str) -> str:
    """Return the name of one of these networks in a recipe."""
    return f"{__name__}:{name}"


def _roots() -> nn.Sequential:
    return nn.Sequential(SignedRoots(), AppendOne())


def _free_head(numbers: int, classes: int) -> nn.Sequential:
    linear = nn.Linear(numbers, classes, bias=False)
    nn.init.zeros_(linear.weight)
    return nn.Sequential(SphereInput(1.0), linear)
