"""Random operations replaced by constants, so that a model gives the same output for an example in any batch."""

from __future__ import annotations

import inspect
import math
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from statistics import NormalDist
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_F = torch.nn.functional
_DROPOUT = {
    _F.dropout, _F.dropout1d, _F.dropout2d, _F.dropout3d, _F.alpha_dropout, _F.feature_alpha_dropout,
    torch.dropout, torch.alpha_dropout, torch.feature_dropout, torch.feature_alpha_dropout,
}  # fmt: skip
_SHUT = 0.01  # dropout drops everything where the uniform number is below this, so that a gate made of it is shut
_RECURRENT = {torch._VF.lstm, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu}  # pyright: ignore[reportPrivateImportUsage]

# Loops that draw until a number is accepted, such as that of random.sample, would never end if it were always the same.
_FEW_IN_LIBRARY = 32  # draws by one call of a function of Python's or torch's
_MOST_DRAWS = 10_000  # by one call of a model
_DRAW_ONCE_EACH = {"choices", "<listcomp>"}  # of random.choices, once for each entry of its result
_BETWEEN = {__name__, "torch.overrides", "torch.utils._device"}  # between a draw and the call that draws
_STEP = (math.sqrt(5) - 1) / 2  # from one number to the next: multiples of it fill the unit interval evenly

BY_PLACE = None  # a uniform number for each place in the code that draws one: loops over examples see the same
LEVELS = (0.25, 0.75, BY_PLACE)
EXTREME_LEVELS = (0.001, 0.999)


class DisableRandomness(TorchFunctionMode):
    """Random operations give what their distribution assigns to one uniform number, whatever the batch.

    So an example is treated alike alone and in a batch. Python's own ``random`` functions get the same number. A model
    that couples examples only if a random number is small shows it at a low level alone: hence several levels.

    Args:
        level: the uniform number, in (0, 1); ``BY_PLACE`` for a different number at each place of the model's code.
    """

    def __init__(self, level: float | None = 0.5) -> None:
        super().__init__()
        self._level = level
        self._patched = ExitStack()
        self._draws = 0  # since the mode was entered
        self._drawing: tuple[FrameType | None, int] = None, 0  # the call that drew last, and how often in a row
        self.used = False  # whether anything random was called

    def __enter__(self) -> DisableRandomness:
        super().__enter__()
        self._patched.enter_context(_python_random(self._uniform))
        self._patched.enter_context(_numpy_random(self._uniform))
        return self

    def __exit__(self, *error: object) -> None:
        self._patched.close()
        self._drawing = None, 0
        super().__exit__(*error)  # pyright: ignore[reportArgumentType]

    def _uniform(self) -> float:
        self.used = True
        self._draws += 1
        level = _uniform_of_place() if self._level is None else self._level
        further = max(self._draws_of_caller() - _FEW_IN_LIBRARY, self._draws - _MOST_DRAWS)
        return (level + further * _STEP) % 1 if further > 0 else level

    def _draws_of_caller(self) -> int:
        """How often in a row the same call of a function of a library has drawn; zero for one of the user's."""
        frame = _innermost(lambda frame: frame.f_globals.get("__name__") in _BETWEEN)
        last, times = self._drawing
        self._drawing = frame, times + 1 if frame is last else 1
        code = frame.f_code
        return self._drawing[1] if _is_library(code.co_filename) and code.co_name not in _DRAW_ONCE_EACH else 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DROPOUT:
            x = args[0] if args else kwargs["input"]
            return x * 0 if _is_on(func, args, kwargs) and self._uniform() < _SHUT else x
        if func is torch.native_dropout:
            is_shut = _is_on(func, args, kwargs) and self._uniform() < _SHUT
            return func(args[0] if args else kwargs["input"], float(is_shut), True)
        if func in (_F.scaled_dot_product_attention, _F.multi_head_attention_forward):
            return self._without_dropout(func, args, kwargs)
        if func in _RECURRENT:
            place = 5 if isinstance(args[3], bool) else 6  # of packed data the batch sizes come second
            self.used |= bool(args[place] and args[place + 1])
            return func(*args[:place], 0.0, *args[place + 1 :], **kwargs)
        if func in (_F.gumbel_softmax, _F.rrelu, torch.rrelu, torch.rrelu_, Tensor.random_):
            return self._by_hand(func, args, kwargs)
        sample = _SAMPLES.get(func)
        if sample is None:
            return func(*args, **kwargs)
        self.used = True
        return sample(self._uniform(), func(*args, **kwargs), _named(func, args, kwargs))

    def _without_dropout(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, place = ("dropout_p", 4 if func is _F.scaled_dot_product_attention else 10)
        self.used |= bool(kwargs.get(name) or args[place : place + 1] not in ((), (0.0,)))
        args = (*args[:place], *((0.0,) if len(args) > place else ()), *args[place + 1 :])
        return func(*args, **(kwargs | ({name: 0.0} if name in kwargs else {})))

    def _by_hand(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Operations that draw their random numbers inside of one call."""
        given, u = _named(func, args, kwargs), self._uniform()
        if func is _F.gumbel_softmax:
            logits, tau, hard, dim = (
                given.get(k, d) for k, d in (("logits", None), ("tau", 1), ("hard", False), ("dim", -1))
            )
            soft = ((logits - math.log(-math.log(u))) / tau).softmax(dim)
            if not hard:
                return soft
            return torch.zeros_like(soft).scatter(dim, soft.argmax(dim, keepdim=True), 1.0) - soft.detach() + soft
        if func is Tensor.random_:
            ends = [value for value in (*args[1:], kwargs.get("from"), kwargs.get("to")) if isinstance(value, int)]
            low, high = (0, 2) if not ends else (0, ends[0]) if len(ends) == 1 else ends[:2]
            return args[0].fill_(low + math.floor(u * (high - low)))
        x, lower, upper = given["input"], given.get("lower", 1 / 8), given.get("upper", 1 / 3)
        slope = lower + u * (upper - lower) if given.get("training", False) else (lower + upper) / 2
        return _F.leaky_relu(x, slope)


Given = dict[str, Any]


@cache
def _parameters(func: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return ()


def _named(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Given:
    """The arguments by name where the operation tells its names, and always by position."""
    names = _parameters(func) or (("input",) if func in (torch.rrelu, torch.rrelu_) else ())
    if func in (torch.rrelu, torch.rrelu_):
        names = ("input", "lower", "upper", "training")
    return {**dict(enumerate(args)), **dict(zip(names, args, strict=False)), **kwargs}  # pyright: ignore[reportReturnType]


def _is_on(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether dropout is in training mode."""
    train = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return bool(train) and bool(kwargs.get("p", args[1] if len(args) > 1 else 0.5))


def _normal(u: float) -> float:
    return NormalDist().inv_cdf(u)


def _argument(given: Given, place: int, name: str, default: Any) -> Any:
    return given.get(name, given.get(place, default))  # pyright: ignore[reportArgumentType,reportCallIssue]


def _normal_of(u: float, output: Tensor, given: Given) -> Tensor:
    """Of ``torch.normal(mean, std)``, whose two arguments may be tensors or numbers."""
    mean, std = _argument(given, 0, "mean", 0.0), _argument(given, 1, "std", 1.0)
    if not isinstance(std, int | float | Tensor):
        std = 1.0
    return output.copy_((mean + std * _normal(u)) * torch.ones_like(output))


def _integers(u: float, output: Tensor, given: Given) -> Tensor:
    """Of ``torch.randint(low, high, size)`` or ``(high, size)``."""
    numbers = [value for key, value in given.items() if isinstance(key, int) and type(value) is int]
    high = given.get("high", numbers[-1] if numbers else 2)
    low = given.get("low", numbers[0] if len(numbers) > 1 or ("high" in given and numbers) else 0)
    return output.fill_(low + math.floor(u * (high - low)))


def _integers_like(u: float, output: Tensor, given: Given) -> Tensor:
    numbers = [value for key, value in given.items() if isinstance(key, int) and type(value) is int]
    high = given.get("high", numbers[-1] if numbers else 2)
    low = given.get("low", numbers[0] if len(numbers) > 1 else 0)
    return output.fill_(low + math.floor(u * (high - low)))


def _permutation(u: float, output: Tensor, given: Given) -> Tensor:
    """Moved on by one rather than left as it is, so that a permutation of the batch shows, and two of them."""
    return output.copy_(torch.arange(len(output), device=output.device).roll(1))


def _bernoulli(u: float, output: Tensor, given: Given) -> Tensor:
    """Of ``bernoulli(p)`` with a tensor of probabilities, or ``bernoulli(input, p)``."""
    p = _argument(given, 1, "p", _argument(given, 0, "input", 0.5))
    return (u < p * torch.ones_like(output)).to(output.dtype)


def _drawn(u: float, output: Tensor, given: Given) -> Tensor:
    """Of ``multinomial``: the entries at which the cumulative weight passes the number; the largest ones in a set."""
    weights = _argument(given, 0, "input", None)
    number = output.shape[-1]
    if number > 1:
        return output.copy_(weights.topk(min(number, weights.shape[-1]), -1).indices.expand_as(output))
    passed = weights.detach().cumsum(-1) < u * weights.detach().sum(-1, keepdim=True)
    return output.copy_(passed.sum(-1, keepdim=True).clamp(max=weights.shape[-1] - 1))


def _gamma(u: float, shape: Tensor) -> Tensor:
    """About the quantile of a gamma distribution, by the cube of Wilson and Hilferty."""
    return shape * (1 - 1 / (9 * shape) + _normal(u) / (3 * shape.sqrt())).clamp(min=0.1) ** 3


def _dirichlet(u: float, output: Tensor, given: Given) -> Tensor:
    """The parts of one gamma number each."""
    drawn = _gamma(u, _argument(given, 0, "input", None))
    return output.copy_(drawn / drawn.sum(-1, keepdim=True))


def _binomial(u: float, output: Tensor, given: Given) -> Tensor:
    """About the quantile, as of a normal number."""
    count, p = _argument(given, 0, "count", None), _argument(given, 1, "prob", None)
    return output.copy_((count * p + _normal(u) * (count * p * (1 - p)).sqrt()).round().clamp(min=0).minimum(count))


# What torch.distributions draws by.
_standard_gamma, _sample_dirichlet = torch._standard_gamma, torch._sample_dirichlet  # pyright: ignore[reportPrivateImportUsage]

Sample = Callable[[float, Tensor, Given], Tensor]
_SAMPLES: dict[Callable[..., Any], Sample] = {
    **dict.fromkeys((torch.rand, torch.rand_like), lambda u, output, given: output.fill_(u)),
    **dict.fromkeys((torch.randn, torch.randn_like), lambda u, output, given: output.fill_(_normal(u))),
    torch.normal: _normal_of,
    torch.randint: _integers,
    torch.randint_like: _integers_like,
    torch.randperm: _permutation,
    **dict.fromkeys((torch.multinomial, Tensor.multinomial), _drawn),
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _bernoulli),
    Tensor.bernoulli_: lambda u, output, given: output.copy_(
        (u < _argument(given, 1, "p", 0.5) * torch.ones_like(output)).to(output.dtype)
    ),
    _standard_gamma: lambda u, output, given: output.copy_(_gamma(u, _argument(given, 0, "input", None))),
    _sample_dirichlet: _dirichlet,
    torch.binomial: _binomial,
    torch.poisson: lambda u, output, given: output.copy_((_argument(given, 0, "input", None) + u).floor()),
    Tensor.normal_: lambda u, output, given: output.fill_(
        _argument(given, 1, "mean", 0.0) + _argument(given, 2, "std", 1.0) * _normal(u)
    ),
    Tensor.uniform_: lambda u, output, given: output.fill_(
        (low := _argument(given, 1, "from", 0.0)) + u * (_argument(given, 2, "to", 1.0) - low)
    ),
    Tensor.exponential_: lambda u, output, given: output.fill_(-math.log1p(-u) / _argument(given, 1, "lambd", 1.0)),
    Tensor.log_normal_: lambda u, output, given: output.fill_(
        math.exp(_argument(given, 1, "mean", 1.0) + _argument(given, 2, "std", 2.0) * _normal(u))
    ),
    Tensor.cauchy_: lambda u, output, given: output.fill_(math.tan(math.pi * (u - 0.5))),
    Tensor.geometric_: lambda u, output, given: output.fill_(
        1 + math.floor(math.log1p(-u) / math.log1p(-min(float(_argument(given, 1, "p", 0.5)), 0.999999)))
    ),
}


def _innermost(passing: Callable[[FrameType], bool]) -> FrameType:
    """The innermost call that is not one of those that are passed over."""
    frame = sys._getframe(1)
    while frame.f_back is not None and passing(frame):
        frame = frame.f_back
    return frame


def _uniform_of_place() -> float:
    """A number in (0, 1) from the place of the innermost call in code that is neither torch's nor ours."""
    frame = _innermost(lambda frame: _is_library(frame.f_code.co_filename))
    return (zlib.crc32(f"{frame.f_code.co_name}:{frame.f_lineno}:{frame.f_lasti}".encode()) + 0.5) / 2**32


@cache
def _is_library(path: str) -> bool:
    return any(part in path.replace("\\", "/") for part in ("/torch/", "/noisette/", "/random.py"))


@contextmanager
def _python_random(uniform: Callable[[], float]) -> Iterator[None]:
    """Python's random functions use this number: the module's own, and those made from it, such as ``choice``."""
    instance: Any = random._inst  # pyright: ignore[reportAttributeAccessIssue]
    before, module_random, module_bits = dict(vars(instance)), random.random, random.getrandbits
    instance.random = random.random = lambda: uniform()
    random.getrandbits = lambda k: math.floor(uniform() * 2**k)  # pyright: ignore[reportAttributeAccessIssue]
    instance._randbelow = lambda n: min(math.floor(uniform() * n), n - 1)
    try:
        yield
    finally:
        random.random, random.getrandbits = module_random, module_bits
        vars(instance).clear()
        vars(instance).update(before)


@contextmanager
def _numpy_random(uniform: Callable[[], float]) -> Iterator[None]:
    """The functions of ``numpy.random`` use this number; generators of the user's own do not."""
    replaced = {name: getattr(np.random, name) for name in (*_NUMPY, "permutation", "shuffle", "choice")}

    def sampler(name: str) -> Callable[..., Any]:
        def sample(*args: Any, **kwargs: Any) -> Any:
            like = replaced[name](*args, **kwargs)
            value = _NUMPY[name](uniform(), *args, **kwargs)
            return np.broadcast_to(value, np.shape(like)).astype(np.asarray(like).dtype) if np.ndim(like) else value

        return sample

    def moved_on(values: Any) -> Any:
        uniform()
        return np.roll(np.arange(values) if np.ndim(values) == 0 else values, 1, axis=0)

    def shuffle(values: Any) -> None:
        uniform()
        values[:] = [*values[-1:], *values[:-1]] if isinstance(values, list) else np.roll(values, 1, axis=0)

    def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        values = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        if size is None or replace:
            chosen = values[min(math.floor(uniform() * len(values)), len(values) - 1)]
            return chosen if size is None else np.full(size, chosen)
        return np.roll(values, 1)[: int(np.prod(size))].reshape(size)

    try:
        for name in _NUMPY:
            setattr(np.random, name, sampler(name))
        for name, function in (("permutation", moved_on), ("shuffle", shuffle), ("choice", choice)):
            setattr(np.random, name, function)
        yield
    finally:
        for name, function in replaced.items():
            setattr(np.random, name, function)


def _numpy_integer(u: float, low: int, high: int | None = None, *_: Any, **__: Any) -> int:
    low, high = (0, low) if high is None else (low, high)
    return low + math.floor(u * (high - low))


_NUMPY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("rand", "random", "random_sample", "ranf", "sample"), lambda u, *_, **__: u),
    **dict.fromkeys(("randn", "standard_normal"), lambda u, *_, **__: _normal(u)),
    "normal": lambda u, loc=0.0, scale=1.0, size=None: loc + scale * _normal(u),
    "uniform": lambda u, low=0.0, high=1.0, size=None: low + u * (high - low),
    "exponential": lambda u, scale=1.0, size=None: -scale * math.log1p(-u),
    "lognormal": lambda u, mean=0.0, sigma=1.0, size=None: math.exp(mean + sigma * _normal(u)),
    "laplace": lambda u, loc=0.0, scale=1.0, size=None: (
        loc + scale * math.copysign(math.log1p(-abs(2 * u - 1)), 0.5 - u)
    ),
    "logistic": lambda u, loc=0.0, scale=1.0, size=None: loc + scale * math.log(u / (1 - u)),
    "gumbel": lambda u, loc=0.0, scale=1.0, size=None: loc - scale * math.log(-math.log(u)),
    "binomial": lambda u, n, p, size=None: n * (u < p),
    "randint": _numpy_integer,
}


@contextmanager
def randomness_disabled_in_recomputation(model: nn.Module, level: float | None = 0.5) -> Iterator[None]:
    """Disable randomness in submodules that activation checkpointing calls again in the backward pass.

    A :class:`DisableRandomness` around the backward pass does not apply there, because autograd runs it outside of the
    mode; hooks enter the mode in each submodule instead.
    """
    active: list[DisableRandomness] = []

    def enter(module: nn.Module, args: Any) -> None:
        active.append(DisableRandomness(level))
        active[-1].__enter__()

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        active.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for module in [part for part in list(model.modules())[1:] if not isinstance(part, torch.jit.ScriptModule)]:
            hooks.enter_context(module.register_forward_pre_hook(enter))
            hooks.enter_context(module.register_forward_hook(leave, always_call=True))
        yield
