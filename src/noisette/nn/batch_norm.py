"""Batch norm without a leak: from public data, from a frozen state, or per example; and its place in models."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from noisette.core.vmap import is_wrapped, outside
from noisette.errors import PrivacyError, all_of, count
from noisette.rules.normalization import Channels, Statistic, normalise_channels, public_mean, public_variance

__all__ = ["FrozenBatchNorm", "PerExampleBatchNorm", "PublicBatchNorm", "convert_batch_norm"]


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[nn.Module]:
    """The model in evaluation mode, so that a trial call changes nothing; on exit each part's mode is restored."""
    modes = [(part, part.training) for part in model.modules()]
    try:
        yield model.eval()
    finally:
        for part, mode in modes:
            part.training = mode


F = nn.functional
Weighted = nn.Linear | nn.modules.conv._ConvNd


class ChannelNorm(nn.Module):
    """Normalises each channel (axis 1) of inputs with two to five axes; its state is named as that of batch norm."""

    needs_public: ClassVar[bool] = False  # its statistics come from a public batch

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features)) if affine else None
        self.bias = nn.Parameter(torch.zeros(num_features)) if affine else None
        self._register_statistics(saved=True)

    def _register_statistics(self, *, saved: bool) -> None:
        self.running_mean = nn.Buffer(torch.zeros(self.num_features), persistent=saved)
        self.running_var = nn.Buffer(torch.ones(self.num_features), persistent=saved)
        self.num_batches_tracked = nn.Buffer(torch.tensor(0), persistent=saved)

    @classmethod
    def use_public(cls, model: nn.Module, inputs: Sequence[Tensor], every: int) -> None:
        """Give the norms of a model their public batch, where ``needs_public``."""

    @classmethod
    def of(cls, norm: _BatchNorm) -> Self:
        """A norm that replaces a batch norm, with its parameters and buffers."""
        made = cls(norm.num_features, norm.eps, norm.affine)
        made.weight, made.bias = norm.weight, norm.bias  # pyright: ignore[reportAttributeAccessIssue] - None if not affine
        made._register_statistics(saved=norm.track_running_stats)
        if (like := norm.running_mean if norm.weight is None else norm.weight) is not None:
            made.to(like.device, like.dtype)
        made.load_state_dict(norm.state_dict(), strict=False)
        return made.train(norm.training)

    def with_constants(self, input: Tensor) -> Tensor:
        """The input normalised by the statistics in the buffers, as batch norm does in evaluation."""
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_features}, eps={self.eps}, affine={self.weight is not None}"


class PublicNorm(ChannelNorm):
    """A norm with the statistics of a :class:`PublicBatch`; see :class:`PublicBatchNorm` for their gradients."""

    needs_public = True

    def __init__(self, num_features: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__(num_features, eps, affine)
        self._follows: tuple[Weighted, ...] = ()  # a tuple, so that the layer is not registered as a submodule
        self._mean: Statistic | None = None
        self._variance: Statistic | None = None
        self._measuring = False
        self._is_measured = False
        self._values = 0  # that each statistic was computed from, as the buffer says, which no graph may read
        self._public_input: Tensor | None = None  # of the preceding layer

    @classmethod
    def use_public(cls, model: nn.Module, inputs: Sequence[Tensor], every: int) -> None:
        PublicBatch.attach(model, inputs, every)

    @property
    def remark(self) -> str:
        """What `noisette doctor` tells the user about this norm, "" if nothing."""
        if not self._is_measured:
            return "has no public batch yet; noisette.nn.convert_batch_norm gives it one"
        constant = "does not directly follow a linear layer or a convolution, so its public statistics are constants"
        return "" if self._follows else f"{constant} in the gradient"

    @property
    def layer(self) -> Weighted | None:
        """The layer with weights that this norm directly follows, if there is one."""
        return self._follows[0] if self._follows else None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """During the public pass: the statistics are computed from the next input."""

        def keep_input(layer: nn.Module, args: tuple[Tensor, ...]) -> None:
            self._public_input = args[0]

        self._measuring, self._is_measured = True, False
        try:
            with nullcontext() if self.layer is None else self.layer.register_forward_pre_hook(keep_input):
                yield
        finally:
            self._measuring, self._public_input = False, None

    def forward(self, input: Tensor) -> Tensor:
        if self._measuring:
            return self._measure(input)
        if self.training and not self._is_measured:
            raise RuntimeError(f"this {type(self).__name__} {self.remark}")
        return self.normalised(input, *self.statistics())

    def normalised(self, input: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """The output for an input, with these statistics of the public batch."""
        raise NotImplementedError

    def statistics(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of the public batch, (c,) each; in training functions of the preceding layer's weights."""
        if not self.training or self._mean is None or self._variance is None:
            return self.running_mean, self.running_var
        [layer] = self._follows
        return public_mean(layer.weight, layer.bias, self._mean), public_variance(layer.weight, self._variance)

    def _measure(self, input: Tensor) -> Tensor:
        """Computes the statistics of a public input, and their gradients; returns the input normalised by them."""
        if self._is_measured:
            raise ValueError(
                f"a {type(self).__name__} was called twice in one pass of the public batch, and the statistics of the "
                "two inputs differ; use a separate norm for each call"
            )
        self._is_measured = True
        axes = [axis for axis in range(input.dim()) if axis != 1]
        values = input if input.dtype.itemsize >= 4 else input.float()
        mean, variance = values.mean(axes), values.var(axes, correction=0)
        self._mean = _in_place_of(self._mean, self._mean_statistic(mean))
        self._variance = _in_place_of(self._variance, self._statistic(variance))
        self._values = input.numel() // self.num_features
        with torch.no_grad():
            self.running_mean.copy_(mean)
            self.running_var.copy_(variance)
            self.num_batches_tracked.fill_(self._values)
            return self.with_constants(input)

    def _statistic(self, statistic: Tensor) -> Statistic | None:
        """The statistic with its gradient by the preceding layer's weight, ``None`` without such a trainable weight."""
        if (layer := self.layer) is None or not layer.weight.requires_grad:
            return None
        [gradient] = torch.autograd.grad(statistic.sum(), [layer.weight], retain_graph=True, allow_unused=True)
        if gradient is None:
            return None
        groups = layer.groups if not isinstance(layer, nn.Linear) and layer.transposed else None
        channels = Channels(gradient.shape, groups)
        return Statistic(statistic.detach().to(gradient.dtype), channels.rows(gradient.unsqueeze(0))[0], channels)

    def _mean_statistic(self, mean: Tensor) -> Statistic | None:
        """The same for the mean, whose gradient is equal for all channels if they have the same inputs."""
        layer, public = self.layer, self._public_input
        is_mixed = not isinstance(layer, nn.Linear | None) and (layer.groups > 1 or layer.transposed)
        if layer is None or public is None or is_mixed or not layer.weight.requires_grad:
            return self._statistic(mean)
        weight = layer.weight[:1].detach().requires_grad_()
        output = F.linear(public, weight) if isinstance(layer, nn.Linear) else layer._conv_forward(public, weight, None)
        [gradient] = torch.autograd.grad(output.mean(), [weight])
        rows = gradient.reshape(1, -1).expand(self.num_features, -1)
        return Statistic(mean.detach().to(gradient.dtype), rows, Channels(layer.weight.shape))


@torch.no_grad()
def _in_place_of(old: Statistic | None, new: Statistic | None) -> Statistic | None:
    """The new statistic, in the tensors of the old one, which a captured step reads, if they have the same form."""
    forms = [of and (of.slope.shape, of.slope.stride(), of.slope.dtype, of.slope.device) for of in (old, new)]
    if old is None or new is None or forms[0] != forms[1]:
        return new
    rows = 1 if old.slope.stride(0) == 0 else None  # one row stands for all
    old.value.copy_(new.value)
    old.slope[:rows].copy_(new.slope[:rows])
    return old


class PublicBatchNorm(PublicNorm):
    """Batch norm with the mean and variance of a public batch under the current weights, for every private example.

    :func:`convert_batch_norm` puts it in the place of batch norm. If the norm directly follows a linear layer or a
    convolution, the gradient accounts for the effect of that layer's weight on the statistics, with the layer's public
    inputs held fixed. Otherwise they are constants. ``num_batches_tracked`` is the number of values behind each.

    Guarantee: the output for an example depends on that example, the weights and the public batch alone, so the
    sensitivity of the model's clipped gradients does not change. None for the public examples.
    Source: Davody et al. 2020, algorithm 1, with statistics that leave out the private examples.

    >>> from noisette.nn import convert_batch_norm
    >>> model, public = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1, eps=0.0)), torch.tensor([[1.0], [3.0]])
    >>> model = convert_batch_norm(model, to=PublicBatchNorm, public=public)
    >>> model(torch.tensor([[2.0], [4.0]])).abs().flatten().round(decimals=3).tolist()
    [0.0, 2.0]
    """

    def normalised(self, input: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        if mean is self.running_mean:
            return self.with_constants(input)
        affine = [] if self.weight is None or self.bias is None else [self.weight, self.bias]
        return normalise_channels(input, [mean, variance, *affine], self.eps)


class PerExampleBatchNorm(PublicNorm):
    """Batch norm over each private example together with a public batch, in closed form.

    Guarantee: as for :class:`PublicBatchNorm`.
    Source: Davody et al. 2020, the test phase of algorithm 1.
    """

    def normalised(self, input: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        # With n public values, m values of the example in each channel, p = n / (n + m) and d = mean - own_mean, the
        # joint mean is own_mean + p d, and the joint variance p variance + (1 - p) (own_variance + p d^2).
        public, positions = self._values or int(self.num_batches_tracked), input[0, 0].numel()
        share = public / (public + positions)
        values = input.flatten(2) if input.dim() > 2 else input.unsqueeze(2)
        own_mean, own_variance = values.mean(2), values.var(2, correction=0)
        difference = torch.sub(mean, own_mean)
        joint_mean = torch.add(own_mean, difference, alpha=share)
        own_part = (1 - share) * (own_variance + share * difference.square())
        joint_variance = torch.add(own_part, variance, alpha=share)
        normalised = (values - joint_mean.unsqueeze(2)) * (joint_variance + self.eps).rsqrt().unsqueeze(2)
        if self.weight is not None and self.bias is not None:
            normalised = normalised * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)
        return normalised.view(input.shape)


class FrozenBatchNorm(ChannelNorm):
    """Batch norm with constant statistics, of a pretrained model or of a public batch; scale and shift are learned.

    Guarantee: as for :class:`PublicBatchNorm`, provided that the statistics were computed from public data.
    """

    def forward(self, input: Tensor) -> Tensor:
        return self.with_constants(input)


class PublicBatch:
    """A forward pre-hook of a model: if weights have changed, it recomputes the statistics of the norms.

    They depend only on the weights and the public batch, the model's positional inputs. In evaluation mode, and in
    ``state_dict``, they are those of the current weights; in training mode they and their gradients are recomputed
    after ``every`` changes of the weights. A copy of the model has its own hook, with the same public batch.
    """

    def __init__(self, inputs: Sequence[Tensor], every: int) -> None:
        self._inputs = tuple(inputs)
        self._every = every
        self._age = 0  # of the statistics, in changes of the weights
        self._seen: tuple[Any, ...] = ()  # versions of the weights at the last call
        self._measured: tuple[Any, ...] = ()  # versions of the weights that the statistics belong to
        self._is_held = False

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        copied = memo[id(self)] = type(self)(self._inputs, self._every)
        return copied

    @classmethod
    def attach(cls, model: nn.Module, inputs: Sequence[Tensor], every: int) -> None:
        """Compute the statistics of this model's norms now, and from now on whenever they are outdated."""
        batch = cls(inputs, every)
        with _find_preceding_layers(model):
            batch._measure(model)
        batch._measure(model)  # each norm knows its layer now; from here on its statistics keep their tensors
        model.register_forward_pre_hook(batch, with_kwargs=True)
        model.register_state_dict_pre_hook(batch.before_saving)

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Recompute the statistics if weights have changed; ValueError if the inputs have another shape."""
        if any(map(is_wrapped, model.parameters())):
            return  # a call repeated by torch.func, after the statistics were computed
        for given, public in zip(args, self._inputs, strict=False):
            if isinstance(given, Tensor) and given.shape[1:] != public.shape[1:]:
                raise ValueError(
                    f"the model was given examples of shape {tuple(given.shape[1:])}, but those of its public batch "
                    f"are of shape {tuple(public.shape[1:])}; use public examples of the shape of the private ones"
                )
        self.refresh(model)

    def hold(self, module: nn.Module) -> None:
        """Recompute the statistics if weights have changed; all calls of a private batch have them, until let go."""
        self.refresh(module)
        self._is_held = True

    def let_go(self) -> None:
        """Recompute the statistics before a call again."""
        self._is_held = False

    def refresh(self, model: nn.Module) -> None:
        """Recompute the statistics if weights have changed, in the same tensors."""
        if self._is_held:
            return
        versions = _versions(model)
        if versions != self._seen:
            self._seen = versions
            self._age += 1
            if (self._age >= self._every or not model.training) and versions != self._measured:
                self._measure(model)

    def before_saving(self, model: nn.Module, prefix: str, keep_vars: bool) -> None:
        """Save the statistics of the weights that are saved."""
        if _versions(model) != self._measured:
            self._measure(model)

    def _measure(self, model: nn.Module) -> None:
        """Run the public pass, in which every norm computes its statistics."""
        inputs = [like(x, model) for x in self._inputs]
        # Function modes are disabled, so that the tape of the private call does not record the public one.
        no_modes = torch._C.DisableTorchFunction()
        with ExitStack() as stack:
            for norm in norms_of(model):
                stack.enter_context(norm.measuring())
            with torch.inference_mode(False), torch.enable_grad(), parametrize.cached(), no_modes, outside():
                model.forward(*inputs)
        self._measured = self._seen = _versions(model)
        self._age = 0


def norms_of(model: nn.Module) -> list[PublicNorm]:
    """The norms of a model that take statistics from a public batch."""
    return [module for module in model.modules() if isinstance(module, PublicNorm)]


@contextmanager
def _find_preceding_layers(model: nn.Module) -> Iterator[None]:
    """During a forward pass, tell each norm whose input is the unmodified output of a weighted layer which it is."""
    outputs: dict[int, tuple[Tensor, int, Weighted]] = {}

    def remember(layer: Any, args: Any, output: Tensor) -> None:
        outputs[id(output)] = output, output._version, layer

    def tell(norm: Any, args: tuple[Tensor, ...]) -> None:
        known = outputs.get(id(args[0]))
        norm._follows = (known[2],) if known and known[1] == args[0]._version else ()

    with ExitStack() as hooks:
        for part in model.modules():
            if isinstance(part, Weighted):
                hooks.enter_context(part.register_forward_hook(remember))
            elif isinstance(part, PublicNorm):
                hooks.enter_context(part.register_forward_pre_hook(tell))
        yield


def _versions(model: nn.Module) -> tuple[Any, ...]:
    """A value that changes with every parameter, every buffer that is not a norm's own, and the mode."""
    own = {id(buffer) for norm in norms_of(model) for buffer in norm.buffers(recurse=False)}
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if id(buffer) not in own)]
    return model.training, *((id(tensor), tensor._version, tensor.dtype) for tensor in tensors)


def like(x: Tensor, model: nn.Module) -> Tensor:
    """The public input on the model's device, floating-point values in its precision."""
    parameter = next(model.parameters(), x)
    return x.to(parameter.device, parameter.dtype) if x.is_floating_point() else x.to(parameter.device)


Model = TypeVar("Model", bound=nn.Module)
Norm = type[ChannelNorm] | type[nn.GroupNorm] | type[nn.LayerNorm] | type[_InstanceNorm]
Inputs = Tensor | Sequence[Tensor]

_MOST_GROUPS, _LEAST_CHANNELS = 32, 16
_STATE = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def convert_batch_norm(
    model: Model, *, to: Norm, public: Inputs | None = None, private: Inputs | None = None, every: int = 1
) -> Model:
    """Replace every batch norm of a model by another norm; scale, shift and names in the state dict do not change.

    Args:
        model: your own, which is changed in place and returned; or the new norm, if it is a batch norm itself.
        to: :class:`PublicBatchNorm` or :class:`PerExampleBatchNorm`, which need ``public``; :class:`FrozenBatchNorm`,
            which keeps the statistics that the model has unless ``public`` is given; or ``torch.nn.GroupNorm``,
            ``LayerNorm`` (over all of an example) or ``InstanceNorm1d`` to ``3d``, which normalise each example alone.
        public: a batch of public inputs, or several tensors where the model takes several.
        private: the private inputs, to check that no public example is one of them (a PrivacyError).
        every: statistics are recomputed after this many changes of the weights.

    Raises:
        ValueError: arguments do not fit each other, public examples are fewer than two or not finite, or a batch norm
            does more than normalise, such as one of timm with its activation inside; all problems are listed.

    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    >>> type(convert_batch_norm(model, to=nn.GroupNorm)[1]).__name__
    'GroupNorm'
    """
    inputs = () if public is None else _inputs(public)
    all_of(
        lambda: _check_target(to, inputs),
        lambda: _check_public(inputs) if inputs else None,
        lambda: count(every=every),
        lambda: _refuse_what_would_be_lost(model),
    )
    if private is not None:
        refuse_overlap(inputs, _inputs(private))
    has_norms = any(isinstance(part, _BatchNorm) for part in model.modules())
    if inputs and has_norms:
        try:
            with torch.no_grad(), in_evaluation(model):
                model(*(like(x, model) for x in inputs))
        except RuntimeError as error:
            shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
            raise ValueError(f"the model does not take the public batch, of shape {shapes}: {error}") from error
    converted = cache(partial(_made, to))  # one norm in two places becomes one
    if isinstance(model, _BatchNorm):
        model = converted(model)  # pyright: ignore[reportAssignmentType]
    for part in list(model.modules()):
        part._modules |= {name: converted(norm) for name, norm in part._modules.items() if isinstance(norm, _BatchNorm)}
    if has_norms and issubclass(to, ChannelNorm) and to.needs_public:
        to.use_public(model, inputs, every)
    elif has_norms and inputs:
        _freeze_at(model, inputs)
    return model


def _inputs(given: Inputs) -> tuple[Tensor, ...]:
    return (given,) if isinstance(given, Tensor) else tuple(given)


def _check_target(to: Norm, inputs: Sequence[Tensor]) -> None:
    from_public = issubclass(to, ChannelNorm) and to.needs_public
    if not from_public and not issubclass(to, FrozenBatchNorm | nn.GroupNorm | nn.LayerNorm | _InstanceNorm):
        raise ValueError(
            f"expected `to` to be PublicBatchNorm, PerExampleBatchNorm, FrozenBatchNorm, "
            f"torch.nn.GroupNorm, LayerNorm or InstanceNorm, got {to.__name__}"
        )
    if from_public and not inputs:
        raise ValueError(f"{to.__name__} takes its statistics from public examples: give a batch of them as public")
    if inputs and not from_public and not issubclass(to, FrozenBatchNorm):
        raise ValueError(f"{to.__name__} normalises each example alone; leave public out")


def _refuse_what_would_be_lost(model: nn.Module) -> None:
    """Raise ValueError naming each batch norm that does more than a norm in its place would, and what."""
    named = [(name or "the model itself", part) for name, part in model.named_modules() if isinstance(part, _BatchNorm)]
    if problems := [f"{name}  {type(norm).__name__} {what}" for name, norm in named if (what := _added_by(norm))]:
        raise ValueError(
            f"{len(problems)} batch norms do more than normalise, which a norm in their place would not do:\n  "
            + "\n  ".join(problems)
            + "\nTake them apart into a torch.nn batch norm and what follows it, or replace them yourself"
        )


def _added_by(norm: _BatchNorm) -> str:
    """What a batch norm adds to those of torch, in words; an empty string if it adds nothing."""
    if isinstance(norm, LazyModuleMixin):
        return "is lazy: call the model once with a public input first"
    forward = next(kind for kind in type(norm).__mro__ if "forward" in vars(kind))
    if not forward.__module__.startswith("torch.nn.modules.") or "forward" in vars(norm):
        return "has a forward of its own"
    if norm._modules:
        return f"has modules of its own: {', '.join(norm._modules)}"
    if tensors := {*norm._parameters, *norm._buffers} - {*_STATE}:
        return f"has parameters or buffers of its own: {', '.join(sorted(tensors))}"
    if norm._forward_hooks or norm._forward_pre_hooks or norm._backward_hooks or norm._backward_pre_hooks:
        return "has hooks: remove them first"
    return ""


def _check_public(inputs: Sequence[Tensor]) -> None:
    counts = {len(x) if x.dim() else 0 for x in inputs}
    if len(counts) > 1:
        raise ValueError(f"the public inputs have {', '.join(map(str, sorted(counts)))} examples; give equal numbers")
    if counts.pop() < 2:
        raise ValueError("statistics need at least two public examples; a hundred or more are recommended")
    if not all(bool(x.isfinite().all()) for x in inputs if x.is_floating_point()):
        raise ValueError("the public batch holds values that are not finite")


def refuse_overlap(public: Sequence[Tensor], private: Sequence[Tensor]) -> None:
    """Raise PrivacyError if a public example is a private record too; both are positional inputs."""
    places = {_row(rows): k for k, rows in enumerate(zip(*public, strict=True))}
    if shared := {places[row] for rows in zip(*private, strict=True) if (row := _row(rows)) in places}:
        raise PrivacyError(
            f"{len(shared)} public examples are private records too (the first is number {min(shared)}): there is "
            "no guarantee for public examples; use others"
        )


def _row(tensors: Sequence[Tensor]) -> bytes:
    return b"".join(x.detach().cpu().double().contiguous().numpy().tobytes() for x in tensors)


def _made(to: Norm, norm: _BatchNorm) -> nn.Module:
    if issubclass(to, ChannelNorm):
        return to.of(norm)
    if issubclass(to, nn.GroupNorm | nn.LayerNorm):
        groups = _groups(norm.num_features) if issubclass(to, nn.GroupNorm) else 1
        made: nn.Module = nn.GroupNorm(groups, norm.num_features, norm.eps, norm.affine)
    else:
        made = to(norm.num_features, norm.eps, affine=norm.affine)
    made.weight, made.bias = norm.weight, norm.bias
    return made.train(norm.training)


def _groups(channels: int) -> int:
    """At most 32 groups of at least 16 channels: a small group loses too much information. Source: Wu & He 2018."""
    most = max(1, min(_MOST_GROUPS, channels // _LEAST_CHANNELS))
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def _freeze_at(model: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Set the statistics to those of the public batch under the current weights, from the first norm to the last."""

    def take(norm: FrozenBatchNorm, args: tuple[Tensor, ...]) -> None:
        axes = [axis for axis in range(args[0].dim()) if axis != 1]
        norm.running_mean.copy_(args[0].mean(axes))
        norm.running_var.copy_(args[0].var(axes, correction=0))

    with ExitStack() as hooks, torch.no_grad():
        for norm in model.modules():
            if isinstance(norm, FrozenBatchNorm):
                hooks.enter_context(norm.register_forward_pre_hook(take))
        model(*(like(x, model) for x in inputs))
