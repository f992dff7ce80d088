"""Fixed features of images and texts, which are public."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from noisette.lipschitz.propagation import NormBound, Sensitivities, Shown, Stretching

__all__ = ["PatchFeatures", "Scattering2d", "Standardise", "Whitening", "WordCounts", "WordVectors"]
__all__ += ["weight_standardised"]


_ACROSS = 2  # the features are averages over this many parts of the image in each direction
_VARIANCE_FLOOR = 1e-3  # added to the variance of a patch, against noise in even areas; pixels are in [0, 1]
_WHITENING_FLOOR = 0.1  # added to the variances of the components of patches
_THRESHOLD = 0.5  # a resemblance below it counts as none
_PATCHES_PER_IMAGE = 20


class PatchFeatures(Shown):
    """How much the patches in each quarter of an image resemble those of a dictionary, or their negatives.

    Maps images (b, c, h, w) to features (b, 2 * filters, 2, 2). Each patch is brought to mean 0 and variance 1 and
    whitened. Its product with each patch of the dictionary, and the negative of this product, count from a threshold on
    and are averaged over a quarter of the image. ``filters`` is the dictionary behind the whitening, (filters, c, side,
    side), ``bias`` what the whitening subtracts from each product, and ``stride`` the pixels between patches.

    Guarantee: each image is treated alone; the constants say nothing about records they were not computed from.
    Source: Coates & Ng 2012, "Learning feature representations with k-means", with patches in the place of means.

    >>> PatchFeatures(torch.ones(5, 3, 6, 6), torch.zeros(5))(torch.rand(4, 3, 32, 32)).shape
    torch.Size([4, 10, 2, 2])
    """

    def __init__(self, filters: Tensor, bias: Tensor, stride: int = 1) -> None:
        super().__init__()
        if filters.dim() != 4 or filters.shape[2] != filters.shape[3] or bias.shape != filters.shape[:1]:
            raise ValueError(
                "expected filters (filters, channels, side, side) and as many biases, got "
                f"{tuple(filters.shape)} and {tuple(bias.shape)}"
            )
        self.stride = stride
        self.filters = nn.Buffer(filters.detach().clone(memory_format=torch.contiguous_format))
        self.bias = nn.Buffer(bias.detach().clone())

    @classmethod
    def of_public(cls, images: Tensor, filters: int, *, side: int = 6, stride: int = 1, seed: int = 0) -> Self:
        """With a dictionary of ``filters`` patches of ``side`` x ``side`` pixels, drawn from these images.

        The images, (n, channels, height, width) with pixels in [0, 1], are public: there is no guarantee for them.
        ``seed`` is that of the generator that draws the patches.
        """
        rows = _normalised(_drawn(images, side, torch.Generator().manual_seed(seed)))
        if not 1 <= filters <= len(rows):
            raise ValueError(f"expected from 1 to {len(rows)} filters of {len(images)} public images, got {filters}")
        mean = rows.mean(0)
        variances, components = torch.linalg.eigh(torch.cov(rows.T.double(), correction=0))
        whitening = (components / (variances + _WHITENING_FLOOR).sqrt()) @ components.T
        chosen = F.normalize((rows[:filters] - mean).double() @ whitening) @ whitening
        return cls(
            chosen.to(images).view(filters, images.shape[1], side, side), (chosen @ mean.double()).to(images), stride
        )

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        side = self.filters.shape[-1]
        # Products with normalised patches, without the patches: their means and deviations are averages of the image.
        centred = self.filters - self.filters.mean((1, 2, 3), keepdim=True)
        mean = F.avg_pool2d(x, side, self.stride).mean(1, keepdim=True)
        square = F.avg_pool2d(x.square(), side, self.stride).mean(1, keepdim=True)
        scale = (square - mean.square()).clamp_min(0).add(_VARIANCE_FLOOR).rsqrt()
        # In place: these are a thousand numbers for each pixel, and new memory costs more than the arithmetic.
        products = F.conv2d(x, centred, stride=self.stride).mul_(scale).sub_(self.bias.view(-1, 1, 1))
        alike = F.adaptive_avg_pool2d(F.relu(products - _THRESHOLD), _ACROSS)
        opposite = F.adaptive_avg_pool2d(products.neg_().sub_(_THRESHOLD).relu_(), _ACROSS)
        return torch.cat([alike, opposite], 1)


def _drawn(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Patches at random places of the images, in a random order, one in each row."""
    high, wide = (length - side + 1 for length in images.shape[2:])
    number = len(images) * _PATCHES_PER_IMAGE
    down, across = (torch.randint(most, (number,), generator=generator) for most in (high, wide))
    owners = torch.randperm(number, generator=generator) % len(images)
    windows = images.unfold(2, side, 1).unfold(3, side, 1)  # (n, c, high, wide, side, side)
    return windows[owners, :, down, across].flatten(1)


def _normalised(rows: Tensor) -> Tensor:
    centred = rows - rows.mean(1, keepdim=True)
    return centred / (centred.square().mean(1, keepdim=True) + _VARIANCE_FLOOR).sqrt()


_AT_ONCE = 32  # images; a convolution in double precision takes their memory times the pixels of its kernel
_ROUNDING = 1e-6  # relative; error of kernels in single precision and of eigenvalues


@torch.no_grad()
def lipschitz_constant(
    fine: Tensor, coarse: Tensor, blur: Tensor, blur_half: Tensor, size: tuple[int, int], order: int
) -> float:
    """Bounds the norm of the difference of two images' features by a multiple of that of the images, for one channel.

    The modulus is 1-Lipschitz, so only the linear maps matter: F and C, the wavelets of the fine and the coarse scale,
    and the blurs A and B. If two images differ by d, the norm of the difference of their features is at most the
    square root of

        |A|^2 (|d|^2 + |F d|^2) + |B|^2 (|C d|^2 + |C|^2 |F d|^2),

    where the last term is that of the second order. This is a quadratic form in d, and its largest eigenvalue is the
    square of the constant. The matrix of every map is computed pixel by pixel, including its padding.
    """
    pixels = torch.eye(size[0] * size[1], dtype=torch.float64, device=fine.device).view(-1, 1, *size)
    half = (size[0] // 2, size[1] // 2)
    halved = torch.eye(half[0] * half[1], dtype=torch.float64, device=fine.device).view(-1, 1, *half)
    fine_form, coarse_form = _quadratic_form(pixels, fine, 1), _quadratic_form(pixels, coarse, 2)
    blur_norm = _largest_eigenvalue(_quadratic_form(pixels, blur, 4))  # |A|^2
    half_norm = _largest_eigenvalue(_quadratic_form(halved, blur_half, 2))  # |B|^2
    identity = torch.eye(len(pixels), dtype=torch.float64, device=fine.device)
    total = blur_norm * (identity + fine_form) + half_norm * coarse_form
    if order == 2:
        total += half_norm * _largest_eigenvalue(coarse_form) * fine_form
    return _largest_eigenvalue(total) ** 0.5 * (1 + _ROUNDING)


def _quadratic_form(pixels: Tensor, kernels: Tensor, stride: int) -> Tensor:
    """M'M of the linear map M from an image to all responses of these kernels."""
    radius = kernels.shape[-1] // 2
    padded = F.pad(pixels, (radius,) * 4, mode="reflect").split(_AT_ONCE)
    form = pixels.new_zeros(len(pixels), len(pixels))
    for kernel in kernels.double().split(1):
        rows = torch.cat([F.conv2d(part, kernel, stride=stride) for part in padded]).flatten(1)
        form.addmm_(rows, rows.T)
    return form


def _largest_eigenvalue(form: Tensor) -> float:
    return float(torch.linalg.eigvalsh(form)[-1])


ANGLES = 8
STRIDE = 4  # pixels between features
_CHANNELS = {1: 1 + 2 * ANGLES, 2: 1 + 2 * ANGLES + ANGLES**2}  # the image, two scales, a scale within a scale
_FINE, _COARSE = 0.8, 1.6  # standard deviations of the wavelets' envelopes along the wave, in pixels
_SLANT = 0.5  # the envelope is twice as long across the wave
_RADIUS = 2.75  # radius of a kernel, in standard deviations


class Scattering2d(Stretching):
    """Scattering coefficients of images at two scales and eight angles.

    Maps images (b, c, h, w) to features (b, c channels, h // 4, w // 4): local averages of the image, of the moduli of
    its wavelet coefficients, and, for ``order`` 2, of the moduli of the wavelet coefficients of those moduli at the
    fine scale: 17 or 81 for each channel of the image. Height and width are multiples of four, at least 12 pixels.

    Its Lipschitz constant is known, about 0.45 for the first order and 0.48 for both, so a Lipschitz network on these
    features has certified radii (:func:`noisette.certify`) for the image.

    >>> Scattering2d()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    def __init__(self, order: int = 2) -> None:
        super().__init__()
        if order not in _CHANNELS:
            raise ValueError(f"expected order to be 1 or 2, got order={order}")
        self.order = order
        self._constants: dict[tuple[int, ...], float] = {}  # by image size
        # Not in the state dict: they are constants of the method.
        self.fine = nn.Buffer(_wavelets(_FINE), persistent=False)
        self.coarse = nn.Buffer(_wavelets(_COARSE), persistent=False)
        self.blur = nn.Buffer(_gaussian(_COARSE), persistent=False)
        self.blur_half = nn.Buffer(_gaussian(_COARSE / 2), persistent=False)

    @property
    def channels(self) -> int:
        """The number of features at a position for each channel of the image."""
        return _CHANNELS[self.order]

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        if h % STRIDE or w % STRIDE or min(h, w) < 12:
            raise ValueError(
                f"scattering needs sides of 12 pixels or more that are multiples of {STRIDE}, got {h} x {w}"
            )
        x = x.reshape(b * c, 1, h, w)
        fine, halved = _moduli(x, self.fine, stride=1), _moduli(x, self.coarse, stride=2)
        if self.order == 2:
            second = _moduli(fine.flatten(0, 1).unsqueeze(1), self.coarse, stride=2)
            halved = torch.cat([halved, second.view(b * c, ANGLES**2, h // 2, w // 2)], 1)
        features = [
            _averages(torch.cat([x, fine], 1), self.blur, stride=STRIDE),
            _averages(halved, self.blur_half, stride=STRIDE // 2),
        ]
        return torch.cat(features, 1).view(b, c * self.channels, h // STRIDE, w // STRIDE)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        c, h, w = shape
        return c * self.channels, h // STRIDE, w // STRIDE

    def constant(self, shape: tuple[int, ...]) -> float:
        """The Lipschitz constant for images of this size; computing it takes seconds, so it is kept."""
        _, *size = shape
        if (key := tuple(size)) not in self._constants:
            kernels = self.fine, self.coarse, self.blur, self.blur_half
            self._constants[key] = lipschitz_constant(*kernels, (size[0], size[1]), self.order)
        return self._constants[key]


def _moduli(images: Tensor, wavelets: Tensor, *, stride: int) -> Tensor:
    """Moduli of the wavelet coefficients of one-channel images at every angle."""
    radius = wavelets.shape[-1] // 2
    parts = F.conv2d(F.pad(images, (radius,) * 4, mode="reflect"), wavelets, stride=stride)
    real, imaginary = parts.split(ANGLES, dim=1)
    return torch.hypot(real, imaginary)


def _averages(images: Tensor, blur: Tensor, *, stride: int) -> Tensor:
    """Local averages of each channel."""
    radius, flat = blur.shape[-1] // 2, images.flatten(0, 1).unsqueeze(1)
    smooth = F.conv2d(F.pad(flat, (radius,) * 4, mode="reflect"), blur, stride=stride)
    return smooth.view(*images.shape[:2], *smooth.shape[2:])


def _grid(radius: int) -> tuple[Tensor, Tensor]:
    side = torch.arange(-radius, radius + 1, dtype=torch.float32)
    y, x = torch.meshgrid(side, side, indexing="ij")
    return y, x


def _gaussian(deviation: float) -> Tensor:
    """A Gaussian kernel with sum one, shape (1, 1, k, k)."""
    y, x = _grid(math.ceil(_RADIUS * deviation))
    kernel = torch.exp(-(x**2 + y**2) / (2 * deviation**2))
    return (kernel / kernel.sum()).unsqueeze(0).unsqueeze(0)


def _wavelets(deviation: float) -> Tensor:
    """Morlet wavelets at every angle, real parts then imaginary parts, shape (2 angles, 1, k, k).

    Each is a plane wave times a Gaussian envelope, less a multiple of the envelope that makes its mean zero.
    """
    y, x = _grid(math.ceil(_RADIUS * deviation / _SLANT))
    kernels = []
    for k in range(ANGLES):
        angle = math.pi * k / ANGLES
        along, across = x * math.cos(angle) + y * math.sin(angle), y * math.cos(angle) - x * math.sin(angle)
        envelope = torch.exp(-(along**2 + (_SLANT * across) ** 2) / (2 * deviation**2))
        wave = envelope * torch.exp(1j * (0.6 * math.pi / deviation) * along)
        wavelet = wave - envelope * (wave.sum() / envelope.sum())
        kernels.append(wavelet * _SLANT / (2 * math.pi * deviation**2))
    stacked = torch.stack(kernels)
    return torch.cat([stacked.real, stacked.imag]).unsqueeze(1)


_CONSTANT = 1e-6  # relative to the largest standard deviation; below it, a channel counts as constant


class Standardise(nn.Module):
    """``(x - mean) / scale`` with constants, which are saved with the weights and never trained.

    Both are numbers, or tensors that broadcast to one example; a scale of 1 keeps distances unchanged.

    Guarantee: none for records that the constants were computed from. Declare them from public knowledge, or compute
    them from public examples with :meth:`of_public`; statistics of the private records would be a release that no
    ledger contains.

    >>> Standardise(mean=0.5, scale=0.25)(torch.tensor([[0.0, 1.0]]))
    tensor([[-2.,  2.]])
    """

    def __init__(self, mean: Tensor | float, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.as_tensor(mean, dtype=torch.get_default_dtype()).detach().clone())
        self.scale = nn.Buffer(torch.as_tensor(scale, dtype=torch.get_default_dtype()).detach().clone())
        if not self.mean.isfinite().all():
            raise ValueError("expected finite means")
        if not ((self.scale > 0) & self.scale.isfinite()).all():
            raise ValueError(f"expected finite scales above zero, got one of {self.scale.min():g}")

    @classmethod
    def of_public(cls, examples: Tensor) -> Self:
        """With the mean of public examples (n, channels, ...) at each position, and their deviation in each channel.

        A channel that does not vary is centred but not scaled. There is no guarantee for these examples.
        """
        mean = examples.double().mean(0)
        axes = [axis for axis in range(examples.dim()) if axis != 1]
        deviation = (examples.double() - mean).square().mean(axes, keepdim=True)[0].sqrt()
        deviation[deviation <= _CONSTANT * deviation.max()] = 1.0
        return cls(mean, deviation).to(examples)

    @classmethod
    def of_channels(cls, mean: Sequence[float], scale: Sequence[float], shape: Sequence[int]) -> Self:
        """With one declared mean and scale for each channel of an example of this shape, or one for all.

        >>> Standardise.of_channels([0.5], [0.25], (1, 2, 2)).mean.shape
        torch.Size([1, 1, 1])
        """
        for name, values in (("mean", mean), ("scale", scale)):
            if len(values) not in (1, shape[0]):
                raise ValueError(
                    f"expected 1 or {shape[0]} values as {name}, the channels of an example of shape {tuple(shape)}, "
                    f"got {len(values)}"
                )
        axes = [1] * (len(shape) - 1)
        return cls(*(torch.tensor(values, dtype=torch.get_default_dtype()).view(-1, *axes) for values in (mean, scale)))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale

    def bound_forward(self, x: NormBound) -> NormBound:
        shift = self.mean.double().broadcast_to(x.shape).norm().item()
        return NormBound((x.norm + shift) / self._smallest_scale, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g / self._smallest_scale, {}

    @property
    def _smallest_scale(self) -> float:
        return self.scale.min().item()

    def extra_repr(self) -> str:
        return f"mean of shape {tuple(self.mean.shape)}, scale of shape {tuple(self.scale.shape)}"


_SMALLEST = 1e-8  # deviation; a filter whose weights are equal becomes zero


class _Standardised(nn.Module):
    """Each filter with mean 0 and deviation 1 / sqrt(its number of weights)."""

    def forward(self, weight: Tensor) -> Tensor:
        filters = weight.flatten(1)
        centred = filters - filters.mean(1, keepdim=True)
        deviation = centred.square().mean(1, keepdim=True).clamp(min=_SMALLEST**2).sqrt()
        return (centred / (deviation * math.sqrt(filters.shape[1]))).view_as(weight)


def weight_standardised(model: nn.Module) -> nn.Module:
    """The model, changed in place so that each convolution that is trained has standardised weights.

    Before each use the weights of a filter are moved to the mean 0 and scaled to the deviation 1 / sqrt(n), n being
    their number, which keeps the size of its inputs; biases stay. A group norm should follow, which has a scale of its
    own. The weights are then called ``NAME.parametrizations.weight.original``, and their gradients are clipped.

    Source: Qiao et al. 2019, "Micro-batch training with batch-channel normalization and weight standardization", and
    Brock et al. 2021 for the scale; in private training De et al. 2022, section 3.2.

    Raises:
        ValueError: the model has no convolution that is trained, or the weights of one are derived already.

    >>> model = weight_standardised(nn.Sequential(nn.Conv2d(1, 4, 3)))
    >>> model[0].weight.flatten(1).norm(dim=1).detach().round(decimals=4)
    tensor([1., 1., 1., 1.])
    """
    layers = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and part.weight.requires_grad
    }
    if not layers:
        raise ValueError("the model has no convolution that is trained, whose weights could be standardised")
    if derived := [name for name, part in layers.items() if parametrize.is_parametrized(part, "weight")]:
        raise ValueError(f"the weights of {', '.join(derived)} are derived from others already; give a plain model")
    for part in layers.values():
        parametrize.register_parametrization(part, "weight", _Standardised())
    return model


class Whitening(nn.Module):
    """The principal components of features, each brought to the same size, and every example to the same length.

    Maps x (b, ...) to (b, components): ``components @ (flat x - mean)``, divided by the root of the mean of its
    squares. ``components``, (components, numbers), are already divided by their standard deviation. A linear layer
    learns in fewer steps on these than on features that differ much in size or say nearly the same.

    Guarantee: none for records that the constants were computed from; compute them from public examples with
    :meth:`of_public`. Each example is treated alone.

    >>> Whitening(torch.zeros(2), torch.eye(2))(torch.tensor([[3.0, 3.0]]))
    tensor([[1., 1.]])
    """

    def __init__(self, mean: Tensor, components: Tensor) -> None:
        super().__init__()
        if mean.dim() != 1 or components.dim() != 2 or components.shape[1] != len(mean):
            raise ValueError(
                "expected a mean (numbers,) and components (components, numbers), got "
                f"{tuple(mean.shape)} and {tuple(components.shape)}"
            )
        self.mean = nn.Buffer(mean.detach().clone())
        self.components = nn.Buffer(components.detach().clone(memory_format=torch.contiguous_format))

    @classmethod
    def of_public(cls, examples: Tensor, components: int, floor: float = 0.2) -> Self:
        """With the mean and the first principal components of public examples (n, ...).

        There are fewer components than examples, and at most as many as numbers of one. ``floor`` is added to the
        variance of each, in units of their mean variance: above 0, small components, which the records may not share
        with the public examples, are not brought to full size. There is no guarantee for these examples.
        """
        from sklearn.decomposition import PCA  # takes a second to import

        flat = examples.flatten(1)
        if not 1 <= components < min(len(flat), flat.shape[1] + 1):
            raise ValueError(
                f"expected from 1 to {min(len(flat) - 1, flat.shape[1])} components of {len(flat)} public examples of "
                f"{flat.shape[1]} numbers, got {components}"
            )
        found = PCA(components, random_state=0).fit(flat.cpu().numpy())
        variance = found.explained_variance_ + floor * found.explained_variance_.mean()
        if not (variance > 0).all():
            raise ValueError("the public examples do not differ; their features have no components")
        rows = found.components_ / variance[:, None] ** 0.5
        return cls(torch.as_tensor(found.mean_).to(examples), torch.as_tensor(rows).to(examples))

    def forward(self, x: Tensor) -> Tensor:
        whitened = nn.functional.linear(x.flatten(1) - self.mean, self.components)
        return nn.functional.rms_norm(whitened, whitened.shape[1:])


class WordCounts(nn.Module):
    """Root of the count of each word times the word's weight, brought to length one: (b, tokens) to (b, words).

    Texts are numbers of words, in which 0 is padding and is not counted; a text without words is zero. All others have
    the same length, so the gradient of a linear layer on them is bounded by the error of its prediction.

    Guarantee: each example is treated alone. The weights, (words,), reveal nothing if they do not come from the
    records.

    >>> WordCounts(torch.ones(4))(torch.tensor([[1, 1, 1, 1, 2, 0]]))
    tensor([[0.0000, 0.8944, 0.4472, 0.0000]])
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self.weights = nn.Buffer(weights.detach().clone())

    def forward(self, numbers: Tensor) -> Tensor:
        numbers, words = numbers.long(), len(self.weights)
        counted = (numbers != 0).to(self.weights.dtype)
        counts = counted.new_zeros(len(numbers), words).scatter_add(1, numbers, counted)
        return F.normalize(counts.sqrt() * self.weights, dim=1)


class WordVectors(nn.Module):
    """The sum of the fixed vectors of a text's words, brought to length one: (b, tokens) to (b, dims).

    Texts are numbers of words, in which 0 is padding and is not counted. A text without words, or whose words have no
    vector, is zero.

    Guarantee: each example is treated alone. The vectors, (words, dims), reveal nothing if they do not come from the
    records.

    >>> WordVectors(torch.tensor([[9.0, 9.0], [3.0, 0.0], [0.0, 2.0]]))(torch.tensor([[1, 2, 2, 0]]))
    tensor([[0.6000, 0.8000]])
    """

    def __init__(self, vectors: Tensor) -> None:
        super().__init__()
        self.vectors = nn.Buffer(vectors.detach().clone())

    def forward(self, numbers: Tensor) -> Tensor:
        numbers = numbers.long()
        counted = (numbers != 0).to(self.vectors.dtype)
        total = torch.einsum("btd,bt->bd", F.embedding(numbers, self.vectors), counted)
        return F.normalize(total, dim=1)
