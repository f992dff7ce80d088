"""Layers and losses with known Lipschitz constants, inputs of bounded norm, and blocks of layers."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from noisette import errors as checks
from noisette.lipschitz import propagation
from noisette.lipschitz.projections import Constrained, Orthogonal, project
from noisette.lipschitz.propagation import NormBound, Projection, Sensitivities, Shown, Stretching

__all__ = ["BoundedInput", "GroupSort2", "HuberLoss", "LayerCentering", "MixerBlock", "PatchConv2d", "Scale"]
__all__ += ["SpectralConv2d", "SpectralLinear", "SphereInput", "TauBCE", "TauCrossEntropy", "TokenMix"]

F = nn.functional
Shape = tuple[int, ...]
Pair = tuple[int, int]
ORTHOGONAL = Orthogonal()


def refuse_batch_axis(dims: Iterable[int]) -> None:
    """Raise ValueError if an axis is 0, along which an operation would mix examples."""
    if 0 in dims:
        raise ValueError("axis 0 holds the examples of a batch, which must not mix; give one of an example, from 1")


def example_axis(dim: int, shape: Shape) -> int:
    """The index of a batch's axis ``dim`` in the shape of one example; ValueError if there is no such axis."""
    axis = dim - 1 if dim > 0 else dim + len(shape)
    if not 0 <= axis < len(shape):
        raise ValueError(f"an example of shape {shape} has no axis {dim}")
    return axis


def per_example_norms(x: Tensor) -> Tensor:
    """The Euclidean norm of each example over all its elements, in double precision, shape (b,)."""
    return torch.linalg.vector_norm(x.flatten(1) if x.dim() > 1 else x.unsqueeze(1), dim=1, dtype=torch.float64)


class SpectralLinear(Constrained):
    """A 1-Lipschitz linear map of the last axis, without bias; its weight is initialised orthogonal.

    Inputs are (b, in_features) or (b, positions, in_features), with any number of position axes.

    Guarantee: for one example whose input has a norm of at most X, over all positions, and whose gradient at the output
    has a norm of at most g, the norm of the gradient of ``weight`` is at most g X.
    Source: Bethune et al. 2024, section 3. The gradient is G'X, and ||G'X||_F <= ||G||_F ||X||.

    >>> layer = SpectralLinear(4, 2)
    >>> (layer.weight @ layer.weight.T).detach().abs().round(decimals=4).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    >>> [round(delta, 4) for delta in layer.bound_backward(NormBound(3.0, (4,)), 2.0)[1].values()]
    [6.0]
    """

    def __init__(self, in_features: int, out_features: int, projection: Projection = ORTHOGONAL) -> None:
        checks.count(in_features=in_features, out_features=out_features)
        super().__init__(projection)
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(out_features, in_features)))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)

    def matrices(self) -> Tensor:
        return self.weight.unsqueeze(0)

    def output_shape(self, shape: Shape) -> Shape:
        if not shape or shape[-1] != self.in_features:
            raise ValueError(f"SpectralLinear takes {self.in_features} features on its last axis, got shape {shape}")
        return (*shape[:-1], self.out_features)


class GroupSort2(Stretching):
    """Sorts pairs of neighbouring channels, the smaller first; they are even in number.

    ``dim`` is the channel axis: 1 for (b, c) and for maps (b, c, h, w), -1 for sequences (b, t, c).

    >>> GroupSort2()(torch.tensor([[3.0, 1.0, -2.0, 5.0]])).tolist()
    [[1.0, 3.0, -2.0, 5.0]]
    """

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        refuse_batch_axis([dim])
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        axis = 1 + example_axis(self.dim, self.output_shape(tuple(x.shape[1:])))
        first, second = x.unflatten(axis, (-1, 2)).unbind(axis + 1)
        ordered = torch.stack((torch.minimum(first, second), torch.maximum(first, second)), axis + 1)
        return ordered.flatten(axis, axis + 1)

    def output_shape(self, shape: Shape) -> Shape:
        if shape[example_axis(self.dim, shape)] % 2:
            raise ValueError(f"GroupSort2 sorts pairs, but axis {self.dim} of an example of shape {shape} is odd")
        return shape


class LayerCentering(Stretching):
    """Subtracts from each example its own mean over ``dims``, which is an orthogonal projection.

    ``dims`` is 1 for the channels at each position of a map, (2, 3) for the positions of each channel, never 0.

    >>> LayerCentering(1)(torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])).tolist()
    [[-2.0, -1.0, 3.0], [-1.0, -1.0, 2.0]]
    """

    def __init__(self, dims: int | Sequence[int]) -> None:
        super().__init__()
        self.dims = (dims,) if isinstance(dims, int) else tuple(dims)
        refuse_batch_axis(self.dims)
        if not self.dims:
            raise ValueError("LayerCentering needs at least one axis, got none")

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean([1 + example_axis(dim, tuple(x.shape[1:])) for dim in self.dims], keepdim=True)

    def output_shape(self, shape: Shape) -> Shape:
        for dim in self.dims:
            example_axis(dim, shape)
        return shape


@cache
def _max_overlap(side: int, outputs: int, taps: int, stride: int, padding: int) -> int:
    """The largest number of windows over one pixel, along one axis; at least 1."""
    windows_at = Counter(at * stride + tap - padding for at in range(outputs) for tap in range(taps))
    return max((count for pixel, count in windows_at.items() if 0 <= pixel < side), default=1)


class SpectralConv2d(Constrained):
    """A 1-Lipschitz convolution without bias, padded with zeros.

    ``weight``, reshaped to one row per output channel, has a spectral norm of at most one. The kernel is ``weight``
    divided by the root of the largest number of windows with one pixel in common, counted for the size of each input.

    Guarantee: as for :class:`SpectralLinear`, because the norm of all patches together is at most that square root
    times the norm of the image.
    Source: Bethune et al. 2024, appendix (reshaped kernel orthogonalisation), with the largest number of windows per
    pixel instead of the mean number, which is too small in the middle of an image.

    >>> layer = SpectralConv2d(2, 4, 3, padding=1)
    >>> layer(torch.zeros(5, 2, 8, 8)).shape, layer.bound_forward(NormBound(3.0, (2, 8, 8))).shape
    (torch.Size([5, 4, 8, 8]), (4, 8, 8))
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        projection: Projection = ORTHOGONAL,
    ) -> None:
        super().__init__(projection)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        checks.count(in_channels=in_channels, out_channels=out_channels, kernel_size=kernel_size, stride=stride)
        checks.whole(padding=padding)
        kernel = torch.empty(out_channels, in_channels, kernel_size, kernel_size)
        self.weight = nn.Parameter(nn.init.orthogonal_(kernel))
        project(self)

    def forward(self, x: Tensor) -> Tensor:
        overlap = self.max_overlap((x.shape[-2], x.shape[-1]))
        kernel = self.weight if overlap == 1 else self.weight * overlap**-0.5
        return F.conv2d(x, kernel, None, self.stride, self.padding)

    def matrices(self) -> Tensor:
        return self.weight.view(1, len(self.weight), -1)

    def max_overlap(self, size: Pair) -> int:
        """The largest number of windows that contain the same pixel of an image of this size."""
        axes = zip(size, self._outputs(size), strict=True)
        height, width = (_max_overlap(*axis, self.kernel_size, self.stride, self.padding) for axis in axes)
        return height * width

    def output_shape(self, shape: Shape) -> Shape:
        channels = self.weight.shape[1]
        if len(shape) != 3 or shape[0] != channels:
            raise ValueError(f"the convolution takes {channels} channels, (channels, height, width), got shape {shape}")
        return (len(self.weight), *self._outputs((shape[1], shape[2])))

    def _outputs(self, size: Pair) -> Pair:
        height, width = ((side + 2 * self.padding - self.kernel_size) // self.stride + 1 for side in size)
        if height < 1 or width < 1:
            raise ValueError(f"an image of {size[0]} x {size[1]} pixels is smaller than a window of the convolution")
        return height, width


class PatchConv2d(SpectralConv2d):
    """A convolution over patches that do not overlap: the stride is the kernel size, so each pixel is in one window.

    Maps (b, c, h, w) become (b, out_channels, h // patch, w // patch). With at least as many output channels as a patch
    has elements, it preserves the norm of every image whose sides are multiples of the patch.

    >>> image = torch.randn(1, 1, 8, 8)
    >>> torch.allclose(PatchConv2d(1, 16, patch=4)(image).norm(), image.norm())
    True
    """

    def __init__(self, in_channels: int, out_channels: int, patch: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__(in_channels, out_channels, patch, stride=patch, projection=projection)


_NO_DIRECTION = 1e-30  # in units of the radius: a shorter example is too close to underflow to be scaled up


class BoundedInput(Shown):
    """Scales each example down to a Euclidean norm of at most ``x0``, over all its elements.

    It is the first layer of a model; it may stand inside too, as behind a bias. An example with an element that is not
    finite becomes zeros.

    Guarantee: ``x0`` must be a public constant. A maximum, mean or standard deviation of the private examples would
    disclose information about them.

    >>> BoundedInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.3, 0.4], [math.nan, 1.0]])).tolist()
    [[3.0, 4.0], [0.30000001192092896, 0.4000000059604645], [0.0, 0.0]]
    """

    def __init__(self, x0: float) -> None:
        super().__init__()
        checks.positive(x0=x0)
        self.x0 = x0

    def forward(self, x: Tensor) -> Tensor:
        norms = per_example_norms(x) / self.x0
        return _divide(x, norms.clamp(min=1), norms.isfinite())

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(min(x.norm, self.x0), x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return g, {}


class SphereInput(BoundedInput):
    """Scales each example to a Euclidean norm of ``x0``, over all its elements; an example of zeros does not change.

    Bounds are tighter than behind :class:`BoundedInput`, because every norm equals its bound. The map has no Lipschitz
    constant near zero, so no layer in front of it can train. ``x0`` must be public here too.

    >>> SphereInput(x0=5.0)(torch.tensor([[6.0, 8.0], [0.0, 0.1], [0.0, 0.0]])).tolist()
    [[3.0, 4.0], [0.0, 5.0], [0.0, 0.0]]
    """

    def forward(self, x: Tensor) -> Tensor:
        norms = per_example_norms(x) / self.x0
        return _divide(x, norms, norms > _NO_DIRECTION)

    def bound_forward(self, x: NormBound) -> NormBound:
        return NormBound(self.x0, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return math.inf, {}


def _divide(x: Tensor, divisors: Tensor, keep: Tensor) -> Tensor:
    """Each example divided by its own divisor, shape (b,); zeros where ``keep`` is false or the divisor not finite."""
    keep = keep & divisors.isfinite()
    rows = (len(x), *[1] * (x.dim() - 1))
    # A division, as the reciprocal of a large number loses digits. Divisors beyond x.dtype are infinite and give zeros.
    return torch.where(keep.view(rows), x / torch.where(keep, divisors, 1.0).to(x.dtype).view(rows), 0.0)


class Scale(Stretching):
    """Multiplies by a constant.

    >>> Scale(-2.0).bound_forward(NormBound(3.0, (5,))).norm
    6.0
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        if not math.isfinite(factor):
            raise ValueError(f"expected a finite factor, got factor={factor}")
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def constant(self, shape: Shape) -> float:
        return abs(self.factor)


class TokenMix(nn.Module):
    """Applies a module of the last axis along the tokens of (b, tokens, channels).

    >>> TokenMix(SpectralLinear(9, 4))(torch.zeros(2, 9, 5)).shape
    torch.Size([2, 4, 5])
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x.transpose(1, 2)).transpose(1, 2)

    def bound_forward(self, x: NormBound) -> NormBound:
        return _transposed(propagation.forward(self.module, _transposed(x)))

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        return propagation.backward(self.module, _transposed(x), g)


class MixerBlock(nn.Module):
    """Mixes the tokens of each channel, then the channels of each token; the shape does not change.

    Inputs are maps (b, channels, height, width) with ``tokens`` positions. Each half is a linear layer,
    :class:`GroupSort2`, :class:`LayerCentering` and a linear layer, as wide as its axis, or one more where that is odd.

    Source: Tolstikhin et al. 2021 for the block; Bethune et al. 2024 for its Lipschitz form.

    >>> block = MixerBlock(tokens=49, channels=64)
    >>> block(torch.zeros(2, 64, 7, 7)).shape
    torch.Size([2, 64, 7, 7])
    """

    def __init__(self, tokens: int, channels: int, projection: Projection = ORTHOGONAL) -> None:
        super().__init__()
        checks.count(tokens=tokens, channels=channels)
        self.tokens, self.channels = tokens, channels
        self.mix_tokens = TokenMix(_mlp(tokens, projection))
        self.mix_channels = _mlp(channels, projection)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix_channels(self.mix_tokens(x.flatten(2).transpose(1, 2))).transpose(1, 2).reshape(x.shape)

    def bound_forward(self, x: NormBound) -> NormBound:
        between = propagation.forward(self.mix_tokens, self._as_sequence(x))
        return NormBound(propagation.forward(self.mix_channels, between).norm, x.shape)

    def bound_backward(self, x: NormBound, g: float) -> tuple[float, Sensitivities]:
        sequence = self._as_sequence(x)
        g, of_channels = propagation.backward(self.mix_channels, propagation.forward(self.mix_tokens, sequence), g)
        g, of_tokens = propagation.backward(self.mix_tokens, sequence, g)
        return g, propagation.sum_sensitivities([of_tokens, of_channels])

    def _as_sequence(self, x: NormBound) -> NormBound:
        if len(x.shape) != 3 or (x.shape[0], x.shape[1] * x.shape[2]) != (self.channels, self.tokens):
            raise ValueError(f"this MixerBlock takes {self.channels} maps of {self.tokens} positions, got {x.shape}")
        return NormBound(x.norm, (self.tokens, self.channels))


def _mlp(width: int, projection: Projection) -> nn.Sequential:
    """Two linear layers over the last axis with the activation and the centring between them."""
    hidden = width + width % 2
    first, last = SpectralLinear(width, hidden, projection), SpectralLinear(hidden, width, projection)
    return nn.Sequential(first, GroupSort2(dim=-1), LayerCentering(-1), last)


def _transposed(x: NormBound) -> NormBound:
    if len(x.shape) != 2:
        raise ValueError(f"tokens are mixed in examples of shape (tokens, channels), got {x.shape}")
    return NormBound(x.norm, (x.shape[1], x.shape[0]))


def score_norm_bound(logit_bound: float | None) -> float:
    """The bound on the norm of the scores; infinite if ``None``."""
    if logit_bound is not None and not logit_bound >= 0:
        raise ValueError(f"expected logit_bound >= 0, got logit_bound={logit_bound}")
    return math.inf if logit_bound is None else logit_bound


def _whole_below(classes: int, scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The targets, and 1 for each, or NaN where it is no class; an error would show that the record is there."""
    _check_one_per_example(scores, targets)
    known = (targets >= 0) & (targets < classes) & (targets == targets.long())
    return torch.where(known, targets, 0).long(), one_or_nan(known, scores)


def one_or_nan(known: Tensor, scores: Tensor) -> Tensor:
    """1 where a target is known, else NaN, (b,): a loss times NaN, and its gradient, add nothing to a bounded sum."""
    return torch.where(known, 1.0, math.nan).to(scores.dtype)


def _check_one_per_example(scores: Tensor, targets: Tensor) -> None:
    if targets.shape != scores.shape[:1]:
        raise ValueError(f"expected one target for each of {len(scores)} examples, got shape {tuple(targets.shape)}")


def single_score(scores: Tensor) -> Tensor:
    """The one score of each example, shape (b,)."""
    if scores.dim() == 1:
        return scores
    if scores.dim() != 2 or scores.shape[1] != 1:
        raise ValueError(f"expected one score for each example, (b,) or (b, 1), got shape {tuple(scores.shape)}")
    return scores.squeeze(1)


class TauCrossEntropy(Shown):
    """Softmax cross-entropy of scores times tau, divided by tau. Targets are classes.

    A large tau favours accuracy; a small one favours wide margins, and so robustness. With the number of ``classes``, a
    bound on the scores gives a smaller Lipschitz constant.

    >>> loss = TauCrossEntropy(tau=8.0)
    >>> loss(torch.tensor([[0.2, -0.1], [0.0, 0.0]]), torch.tensor([0, 1]))
    tensor([0.0109, 0.0866])
    >>> round(loss.lipschitz(), 5), round(TauCrossEntropy(tau=1.0, classes=10).lipschitz(logit_bound=1.0), 5)
    (1.41421, 1.37702)
    """

    def __init__(self, tau: float, classes: int | None = None) -> None:
        super().__init__()
        checks.positive(tau=tau)
        if classes is not None:
            checks.count(classes=classes)
        if classes == 1:
            raise ValueError("expected classes >= 2, got classes=1; use TauBCE for two classes on one score")
        self.tau, self.classes = tau, classes

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        outputs = scores.shape[1] if scores.dim() == 2 else 0
        if outputs < 2 or self.classes not in (None, outputs):
            raise ValueError(f"expected scores of shape (b, {self.classes or 'classes'}), got {tuple(scores.shape)}")
        classes, known = _whole_below(outputs, scores, targets)
        return F.cross_entropy(self.tau * scores, classes, reduction="none") / self.tau * known

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The gradient is p - e_y, of norm at most sqrt(2) (1 - p_y); a bound on the scores keeps p_y above zero."""
        norm = score_norm_bound(logit_bound)
        if self.classes is None or norm == math.inf:
            return math.sqrt(2)
        # Scores of norm R differ by at most sqrt(2) R, so (1 - p_y) / p_y is at most (C - 1) exp(sqrt(2) tau R).
        log_odds = math.log(self.classes - 1) + math.sqrt(2) * self.tau * norm
        return math.sqrt(2) / (1 + math.exp(-log_odds))


class TauBCE(Shown):
    """Logistic loss of one score times tau, divided by tau. Targets are 0 and 1.

    >>> loss = TauBCE(tau=2.0)
    >>> loss(torch.tensor([0.5, -1.0]), torch.tensor([1, 1])), loss.lipschitz()
    (tensor([0.1566, 1.0635]), 1.0)
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        checks.positive(tau=tau)
        self.tau = tau

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        classes, known = _whole_below(2, scores, targets)
        return -F.logsigmoid(self.tau * (2 * classes - 1) * known * single_score(scores)) / self.tau

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The absolute gradient is the predicted probability of the other class."""
        return 1 / (1 + math.exp(-self.tau * score_norm_bound(logit_bound)))


class HuberLoss(Shown):
    """Half the squared distance of one score to the target, a number; linear beyond ``delta``.

    >>> loss = HuberLoss(delta=0.5)
    >>> loss(torch.tensor([0.2, 2.0]), torch.tensor([0.0, 0.0])), loss.lipschitz()
    (tensor([0.0200, 0.8750]), 0.5)
    """

    def __init__(self, delta: float = 1.0) -> None:
        super().__init__()
        checks.positive(delta=delta)
        self.delta = delta

    def forward(self, scores: Tensor, targets: Tensor) -> Tensor:
        _check_one_per_example(scores, targets)
        distance = (single_score(scores) - targets.to(scores.dtype)) * one_or_nan(targets.isfinite(), scores)
        return F.huber_loss(distance, torch.zeros_like(distance), reduction="none", delta=self.delta)

    def lipschitz(self, logit_bound: float | None = None) -> float:
        """The absolute gradient is at most delta."""
        return self.delta
