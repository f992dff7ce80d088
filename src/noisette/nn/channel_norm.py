"""Norms that stand where batch norm stood, with its parameters and buffers, and look at public examples instead."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from noisette.gradients.rules.public_statistics import Statistic, normalise_channels, public_mean, public_variance
from noisette.gradients.rules.shared_slope import Channels

F = nn.functional
_BATCH_NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}  # by axes of the input
Weighted = nn.Linear | nn.modules.conv._ConvNd


class ChannelNorm(nn.Module):
    """Normalises each channel (axis 1) of inputs of two to five axes; scale, shift and buffers are batch norm's.

    Args:
        num_features: number of channels.
        eps: added to the variance.
        affine: whether there is a scale ``weight`` and a shift ``bias`` to learn.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.batch_norm: type[_BatchNorm] | None = None  # the class whose place it takes, once that is known
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches_tracked: Tensor
        self._keep_statistics(saved=True)

    def _keep_statistics(self, *, saved: bool) -> None:
        self.register_buffer("running_mean", torch.zeros(self.num_features), persistent=saved)
        self.register_buffer("running_var", torch.ones(self.num_features), persistent=saved)
        self.register_buffer("num_batches_tracked", torch.tensor(0), persistent=saved)

    @classmethod
    def of(cls, norm: _BatchNorm) -> Self:
        """A norm with the parameters and buffers of a batch norm, whose place it takes."""
        own = cls(norm.num_features, norm.eps, norm.affine)
        own.batch_norm = type(norm)
        own.weight, own.bias = norm.weight, norm.bias  # pyright: ignore[reportAttributeAccessIssue] - None if not affine
        own._keep_statistics(saved=norm.track_running_stats)
        if (like := norm.running_mean if norm.weight is None else norm.weight) is not None:
            own.to(like.device, like.dtype)
        own.load_state_dict(norm.state_dict(), strict=False)
        return own.train(norm.training)

    def with_constants(self, input: Tensor) -> Tensor:
        """The input normalised by the statistics in the buffers, as batch norm does in evaluation."""
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"


class PublicNorm(ChannelNorm):
    """A norm whose statistics are those of a public batch, see :class:`noisette.nn.public_batch.PublicBatch`.

    In the gradient they follow the weights of the layer in front, if the norm stands directly behind one.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_features, eps, affine)
        self._follows: tuple[Weighted, ...] = ()  # in a tuple, so that the layer is no part of the norm
        self._mean_at: Statistic | None = None
        self._variance_at: Statistic | None = None
        self._measuring = False
        self._is_measured = False
        self._public_input: Tensor | None = None  # of the layer in front

    @property
    def remark(self) -> str:
        """What a user should know of this norm in its place, "" if nothing."""
        if not self._is_measured:
            return "has no public batch yet; give it one with noisette.nn.convert_batch_norm or use_public_batch"
        if not self._follows:
            return (
                "does not directly follow a linear layer or a convolution, so its public statistics count as constants "
                "in the gradient"
            )
        return ""

    def follow(self, layer: Weighted | None) -> None:
        """Let the gradient know that the statistics are those of this layer's outputs."""
        self._follows = () if layer is None else (layer,)

    @property
    def layer(self) -> Weighted | None:
        """The layer that this norm directly stands behind, if there is one."""
        return self._follows[0] if self._follows else None

    def see_public(self, layer: nn.Module, args: tuple[Tensor, ...]) -> None:
        """A hook before the calls of the layer in front, while inputs are public."""
        self._public_input = args[0]

    def begin_measuring(self) -> None:
        """From now on inputs are public."""
        self._measuring, self._is_measured = True, False

    def end_measuring(self) -> None:
        """From now on inputs are private."""
        self._measuring = False
        self._public_input = None

    def forward(self, input: Tensor) -> Tensor:
        if self._measuring:
            return self._measure(input)
        if not self.training:
            return self.evaluated(input)
        if not self._is_measured:
            raise RuntimeError(f"this {type(self).__name__} {self.remark}")
        return self.trained(input)

    def trained(self, input: Tensor) -> Tensor:
        """What becomes of a private input in training mode."""
        raise NotImplementedError

    def evaluated(self, input: Tensor) -> Tensor:
        """What becomes of an input in evaluation mode."""
        return self.with_constants(input)

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the public batch, (c,) each, as functions of the weights in front."""
        if self._mean_at is None or self._variance_at is None:
            return self.running_mean, self.running_var
        [layer] = self._follows
        return public_mean(layer.weight, layer.bias, self._mean_at), public_variance(layer.weight, self._variance_at)

    def _measure(self, input: Tensor) -> Tensor:
        if self._is_measured:
            raise ValueError(
                f"a {type(self).__name__} was called twice in one pass of the public batch, and the statistics of two "
                "places are not the same; give each place a norm of its own"
            )
        self._is_measured = True
        self.batch_norm = self.batch_norm or _BATCH_NORMS.get(input.dim())
        axes = [axis for axis in range(input.dim()) if axis != 1]
        wide = input if input.dtype.itemsize >= 4 else input.float()
        mean, variance = wide.mean(axes), wide.var(axes, correction=0)
        self._mean_at, self._variance_at = self._mean_moves(mean), self._moves(variance)
        with torch.no_grad():
            self.running_mean.copy_(mean)
            self.running_var.copy_(variance)
            self.num_batches_tracked.fill_(input.numel() // self.num_features)
            return self.with_constants(input)

    def _moves(self, statistic: Tensor) -> Statistic | None:
        """The statistic with its slope, ``None`` if it depends on no trainable weight in front."""
        if (layer := self.layer) is None or not layer.weight.requires_grad:
            return None
        [slope] = torch.autograd.grad(statistic.sum(), [layer.weight], retain_graph=True, allow_unused=True)
        if slope is None:
            return None
        groups = layer.groups if not isinstance(layer, nn.Linear) and layer.transposed else None
        channels = Channels(slope.shape, groups)
        return Statistic(statistic.detach().to(slope.dtype), channels.rows(slope.unsqueeze(0))[0], channels)

    def _mean_moves(self, mean: Tensor) -> Statistic | None:
        """The same for the mean, whose slope is one for all channels where they have the same inputs."""
        layer, seen = self.layer, self._public_input
        if layer is None or seen is None or not layer.weight.requires_grad or not _has_shared_inputs(layer):
            return self._moves(mean)
        weight = layer.weight[:1].detach().requires_grad_()
        output = F.linear(seen, weight) if isinstance(layer, nn.Linear) else layer._conv_forward(seen, weight, None)
        [slope] = torch.autograd.grad(output.mean(), [weight])
        rows = slope.reshape(1, -1).expand(self.num_features, -1)
        return Statistic(mean.detach().to(slope.dtype), rows, Channels(layer.weight.shape))


def _has_shared_inputs(layer: Weighted) -> bool:
    return isinstance(layer, nn.Linear) or (layer.groups == 1 and not layer.transposed)


class PublicBatchNorm(PublicNorm):
    """Batch norm with the mean and variance of a public batch under the weights of now, for every private example.

    Put it where batch norm would be and give the model its public batch with :func:`convert_batch_norm` or
    :func:`use_public_batch`. In the gradient, the statistics follow the weight of the linear layer or convolution that
    the norm directly stands behind, with the layer's public inputs held fixed; so the gradient is at right angles to
    the weight of each channel, as batch norm's is, and weights do not grow unseen. Elsewhere they are constants.
    ``num_batches_tracked`` holds how many values each statistic was taken from.

    Guarantee: what it gives for an example depends on that example, the weights and the public batch alone, so the
    model's clipped gradients keep their ordinary bound. Nothing is promised to the public examples.
    Source: Davody et al. 2020, algorithm 1, with the private examples taken out of its statistics.

    Raises:
        RuntimeError: called in training mode without a public batch.

    >>> from noisette.nn import use_public_batch
    >>> model = nn.Sequential(nn.Linear(1, 1), PublicBatchNorm(1, eps=0.0))
    >>> _ = use_public_batch(model, torch.tensor([[1.0], [3.0]]))
    >>> model(torch.tensor([[2.0], [4.0]])).abs().flatten().round(decimals=3).tolist()
    [0.0, 2.0]
    """

    def trained(self, input: Tensor) -> Tensor:
        mean, variance = self.statistics()
        if mean is self.running_mean:
            return self.with_constants(input)
        affine = [] if self.weight is None or self.bias is None else [self.weight, self.bias]
        return normalise_channels(input, [mean, variance, *affine], self.eps)


class PerExampleBatchNorm(PublicNorm):
    """Batch norm over one private example and a public batch together, for each private example on its own.

    Mean and variance are those of the public values and the example's own, in closed form: the public activations are
    those of the public batch alone, as for :class:`PublicBatchNorm`. :class:`ExactPerExampleBatchNorm` lets them feel
    the example too, at many times the cost.

    Guarantee: as for :class:`PublicBatchNorm`.
    Source: Davody et al. 2020, the test phase of algorithm 1.

    Raises:
        RuntimeError: called in training mode without a public batch.
    """

    def trained(self, input: Tensor) -> Tensor:
        return self._with_own(input, *self.statistics())

    def evaluated(self, input: Tensor) -> Tensor:
        return self._with_own(input, self.running_mean, self.running_var)

    def _with_own(self, input: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        public, positions = int(self.num_batches_tracked), input[0, 0].numel()
        share = public / (public + positions)
        values = input.flatten(2) if input.dim() > 2 else input.unsqueeze(2)
        own_mean, own_variance = values.mean(2), values.var(2, correction=0)
        apart = torch.sub(mean, own_mean)
        joint_mean = torch.add(own_mean, apart, alpha=share)
        scattered = (1 - share) * (own_variance + share * apart.square())
        joint_variance = torch.add(scattered, variance, alpha=share)
        normalised = (values - joint_mean.unsqueeze(2)) * (joint_variance + self.eps).rsqrt().unsqueeze(2)
        if self.weight is not None and self.bias is not None:
            normalised = normalised * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)
        return normalised.view(input.shape)


class FrozenBatchNorm(ChannelNorm):
    """Batch norm whose statistics never change: those it was made with, of a pretrained model or of a public batch.

    Scale and shift are learnt, unless their gradients are off.

    Guarantee: as for :class:`PublicBatchNorm`, provided that the statistics were learnt from public data.
    """

    def forward(self, input: Tensor) -> Tensor:
        return self.with_constants(input)
