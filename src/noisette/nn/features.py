"""Fixed features of images and texts, which are public, and views of an example: copies, and means over them."""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from noisette import errors as checks
from noisette.lipschitz.propagation import NormBound, Sensitivities, Shown

__all__ = ["MirrorAndShift", "MirrorAverage", "PatchFeatures", "Scattering2d", "Standardise", "Whitening"]
__all__ += ["WordCounts", "mean_over_views"]

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
            got = f"{tuple(filters.shape)} and {tuple(bias.shape)}"
            raise ValueError(f"expected filters (filters, channels, side, side) and as many biases, got {got}")
        self.stride = stride
        self.filters = nn.Buffer(filters.detach().clone(memory_format=torch.contiguous_format))
        self.bias = nn.Buffer(bias.detach().clone())

    @classmethod
    def of_public(cls, images: Tensor, filters: int, *, side: int = 6, stride: int = 1, seed: int = 0) -> Self:
        """With a dictionary of ``filters`` patches of ``side`` x ``side`` pixels, drawn from these images.

        The images, (n, channels, height, width) with pixels in [0, 1], are public: there is no guarantee for them.
        ``seed`` is that of the generator that draws the patches.
        """
        drawn = _drawn(images, side, torch.Generator().manual_seed(seed))
        rows = F.layer_norm(drawn, drawn.shape[1:], eps=_VARIANCE_FLOOR)
        if not 1 <= filters <= len(rows):
            raise ValueError(f"expected from 1 to {len(rows)} filters of {len(images)} public images, got {filters}")
        mean = rows.mean(0)
        variances, components = torch.linalg.eigh(torch.cov(rows.T.double(), correction=0))
        whitening = (components / (variances + _WHITENING_FLOOR).sqrt()) @ components.T
        chosen = F.normalize((rows[:filters] - mean).double() @ whitening) @ whitening
        bias = (chosen @ mean.double()).to(images)
        return cls(chosen.to(images).view(filters, images.shape[1], side, side), bias, stride)

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


ANGLES = 8
STRIDE = 4  # pixels between features
_CHANNELS = {1: 1 + 2 * ANGLES, 2: 1 + 2 * ANGLES + ANGLES**2}  # the image, two scales, a scale within a scale
_FINE, _COARSE = 0.8, 1.6  # standard deviations of the wavelets' envelopes along the wave, in pixels
_SLANT = 0.5  # the envelope is twice as long across the wave
_RADIUS = 2.75  # radius of a kernel, in standard deviations


class Scattering2d(Shown):
    """Scattering coefficients of images at two scales and eight angles.

    Maps images (b, c, h, w) to features (b, c channels, h // 4, w // 4): local averages of the image, of the moduli of
    its wavelet coefficients, and, for ``order`` 2, of the moduli of the wavelet coefficients of those moduli at the
    fine scale: 17 or 81 for each channel of the image. Height and width are multiples of four, at least 12 pixels.

    >>> Scattering2d()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 81, 7, 7])
    """

    def __init__(self, order: int = 2) -> None:
        super().__init__()
        if order not in _CHANNELS:
            raise ValueError(f"expected order to be 1 or 2, got order={order}")
        self.order = order
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
            raise ValueError(f"scattering needs sides of 12 pixels or more, multiples of {STRIDE}, got {h} x {w}")
        x = x.reshape(b * c, 1, h, w)
        fine, halved = _moduli(x, self.fine, stride=1), _moduli(x, self.coarse, stride=2)
        if self.order == 2:
            second = _moduli(fine.flatten(0, 1).unsqueeze(1), self.coarse, stride=2)
            halved = torch.cat([halved, second.view(b * c, ANGLES**2, h // 2, w // 2)], 1)
        whole = _averages(torch.cat([x, fine], 1), self.blur, stride=STRIDE)
        halved = _averages(halved, self.blur_half, stride=STRIDE // 2)
        return torch.cat([whole, halved], 1).view(b, c * self.channels, h // STRIDE, w // STRIDE)


def _moduli(images: Tensor, wavelets: Tensor, *, stride: int) -> Tensor:
    """Moduli of the wavelet coefficients of one-channel images at every angle."""
    parts = F.conv2d(F.pad(images, (wavelets.shape[-1] // 2,) * 4, mode="reflect"), wavelets, stride=stride)
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
    """Morlet wavelets at every angle, real parts then imaginary parts, shape (2 angles, 1, k, k), each of mean zero."""
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
    them from public examples with :meth:`of_public`; those of private records would be a release that no ledger holds.

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

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.scale

    def bound_forward(self, x: NormBound) -> NormBound:
        shift = self.mean.double().broadcast_to(x.shape).norm().item()
        return NormBound((x.norm + shift) / self.scale.min().item(), x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g / self.scale.min().item(), {}

    def extra_repr(self) -> str:
        return f"mean of shape {tuple(self.mean.shape)}, scale of shape {tuple(self.scale.shape)}"


class Whitening(nn.Module):
    """The principal components of features, each brought to the same size, and every example to the same length.

    Maps x (b, ...) to (b, components): ``components @ (flat x - mean)``, divided by the root of the mean of its
    squares. ``components``, (components, numbers), are already divided by their standard deviation. A linear layer
    learns in fewer steps on these than on features that differ much in size or say nearly the same.

    Guarantee: as for :class:`Standardise`. Each example is treated alone.

    >>> Whitening(torch.zeros(2), torch.eye(2))(torch.tensor([[3.0, 3.0]]))
    tensor([[1., 1.]])
    """

    def __init__(self, mean: Tensor, components: Tensor) -> None:
        super().__init__()
        if mean.dim() != 1 or components.dim() != 2 or components.shape[1] != len(mean):
            got = f"{tuple(mean.shape)} and {tuple(components.shape)}"
            raise ValueError(f"expected a mean (numbers,) and components (components, numbers), got {got}")
        self.mean = nn.Buffer(mean.detach().clone())
        self.components = nn.Buffer(components.detach().clone(memory_format=torch.contiguous_format))

    @classmethod
    def of_public(cls, examples: Tensor, components: int, floor: float = 0.2) -> Self:
        """With the mean and the first principal components of public examples (n, ...).

        There are fewer components than examples, and at most as many as numbers of one. ``floor`` is added to the
        variance of each, in units of their mean variance, so that small components, which the records may not share,
        are not brought to full size. There is no guarantee for these examples.
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


Loss = Callable[..., Tensor]


def mean_over_views(loss: Loss, augment: Callable[[Tensor], Tensor], views: int) -> Loss:
    """The loss of one example as the mean over several views of it, for ``run.accumulate``.

    The views lie in one batch, so a step costs as much as one with ``views`` times as many examples. ``loss`` is called
    as ``loss(model, x, *others)`` with the views of one example, (views, ...), and every other tensor repeated; it
    returns one value for each view, or their mean. ``augment``, such as :class:`~noisette.nn.MirrorAndShift`, is called
    with the example repeated, (views, ...), and returns as many views.

    Guarantee: the views of a record are in the loss of that record alone. Its gradient is their mean, is clipped once,
    and costs what one view costs.
    Source: De et al. 2022, "Unlocking high-accuracy [...] image classification through scale", section 3.2.

    >>> loss = mean_over_views(lambda model, x, y: (x.squeeze(1) - y) ** 2, lambda x: x + torch.arange(2.0)[:, None], 2)
    >>> loss(None, torch.tensor([[3.0]]), torch.tensor([3.0]))
    tensor([0.5000])
    """
    checks.count(views=views)

    def mean(model: nn.Module, x: Tensor, *others: Any, **keywords: Any) -> Tensor:
        made = augment(x.repeat_interleave(views, 0))
        if len(made) != len(x) * views:
            raise ValueError(f"expected {views} views of {len(x)} examples, got {len(made)} from augment")
        others, keywords = tree_map_only(Tensor, lambda value: value.repeat_interleave(views, 0), (others, keywords))
        values = loss(model, made, *others, **keywords)
        return values.unflatten(0, (len(x), views)).mean(1) if values.dim() else values

    return mean


class MirrorAverage(nn.Module):
    """A model of images (b, c, h, w) whose scores are the mean of those for the image and for its mirror image.

    >>> MirrorAverage(nn.Flatten())(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[2., 2.]])
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return (self.model(x) + self.model(x.flip(-1))) / 2


class MirrorAndShift:
    """Random views of images (b, c, h, w): mirrored with probability one half, shifted by up to ``shift`` pixels.

    Each row has random numbers of its own, from the generator of PyTorch. A private run seeds it secretly for each
    batch: if others knew the views, one record more would move those of all records behind it. All shifts along an axis
    are equally likely; pixels without a value take that of the nearest pixel of the border.

    >>> MirrorAndShift(flip=True, shift=2)(torch.zeros(5, 3, 8, 8)).shape
    torch.Size([5, 3, 8, 8])
    """

    def __init__(self, *, flip: bool = True, shift: int = 0) -> None:
        checks.whole(shift=shift)
        if not (flip or shift):
            raise ValueError("views are mirrored or shifted; ask for flip, for a shift, or for both")
        self.flip, self.shift = flip, shift

    def __call__(self, images: Tensor) -> Tensor:
        count, device = len(images), images.device
        if self.flip:
            images = torch.where((torch.rand(count, device=device) < 0.5).view(-1, 1, 1, 1), images.flip(-1), images)
        if self.shift:
            down, right = (torch.randint(-self.shift, self.shift + 1, (count,), device=device) for _ in range(2))
            height, width = images.shape[-2:]
            rows = (torch.arange(height, device=device) - down.unsqueeze(1)).clamp(0, height - 1)
            columns = (torch.arange(width, device=device) - right.unsqueeze(1)).clamp(0, width - 1)
            images = images.gather(2, rows[:, None, :, None].expand(images.shape))
            images = images.gather(3, columns[:, None, None, :].expand(images.shape))
        return images
