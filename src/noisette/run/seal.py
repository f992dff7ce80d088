"""The seal: while a batch is read, nothing of it stays in the model. Parameters move by the release alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import compress
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_flatten

from noisette._internal.content_mark import content_mark
from noisette._internal.first_few import first_few
from noisette._internal.random_state import is_drawn_since_seeded, seed_secretly, seed_secretly_again, torch_seeded
from noisette.core.keys import SecretKey
from noisette.core.release import GradientBound, PreparesBatch
from noisette.errors import PrivacyError
from noisette.ranks.shards import local
from noisette.run.model_snapshot import ModelSnapshot

_KEPT_BYTES = 2**24  # tensors that are not trained are copied up to this size; of larger ones the mark is kept


class Seal:
    """Keeps everything that a batch writes out of the model, from the first microbatch to the release.

    Before each microbatch and at the release, all buffers, tensor attributes and Python attributes are put back to what
    they were before the first microbatch: they serve within one microbatch. So counters, statistics and caches neither
    tell the number of microbatches nor carry anything from one to the next. A spectral norm of torch then makes its
    power iteration once for each step, by the weights alone. Noise on weights is drawn once for a whole batch. Random
    generators have secret seeds within the batch: by a known seed, one record more would give those behind it other
    views and masks, which others could compute. After it they go on from seeds drawn before the first microbatch.
    Parameters may not be written at all.

    Args:
        bound: whose model is sealed, and whose parameters are trained.
        key: of the run, the same on all ranks.

    Guarantee: after the release, what ``state_dict`` and a pickle of the model contain does not depend on the batch
    beside the released sums. Not seen: closures, hooks and globals, and objects that are no part of the model
    (:class:`noisette.run.model_snapshot.ModelSnapshot`).
    """

    def __init__(self, bound: GradientBound, key: SecretKey) -> None:
        self._bound = bound
        self._key = key
        self._batches = 0
        self._trained = {id(local(p)) for p in bound.parameters.values()}
        self._before: _ModelState | None = None  # the first microbatch; None between batches
        self._copies: dict[int, _Kept] = {}  # of parameters at the last batch, by id
        self._refusal: PrivacyError | None = None

    def before_microbatch(self) -> None:
        """Called before records are read: the model is as before the first microbatch of the batch."""
        if self._before is not None:
            self._before.put_back()
            return
        if self._refusal is not None:
            raise self._refusal
        if isinstance(self._bound, PreparesBatch):
            self._bound.before_batch()
        self._before = _ModelState(self._bound.model, self._trained, self._copies, self._seed_of_all_ranks())
        self._copies = self._before.copies

    def before_reading(self) -> None:
        """Called before the records of a microbatch are read."""
        self.before_microbatch()
        self.before_random_numbers()

    def before_random_numbers(self) -> None:
        """Called where records are read and where losses are computed: seeds are secret there.

        Within a batch, the caller, the data set or another run that ends a batch may seed generators.
        """
        if self._before is not None:
            self._before.keep_secret()

    def warn_of_known_numbers(self) -> None:
        """Warn if torch's generator was seeded since the records were read, and has given numbers.

        It may have given them to something else than the losses, such as public examples.
        """
        if self._before is not None and self._before.is_seeded_since() and is_drawn_since_seeded():
            warnings.warn(_KNOWN_NUMBERS, stacklevel=4)

    def before_release(self) -> None:
        """Put everything back before sums of the batch are released.

        Raises:
            PrivacyError: a parameter was written, exchanged, added or removed; the parameters are put back as well, and
                the run cannot go on.
        """
        self.before_microbatch()  # also of an empty batch
        if changed := self.open_again():
            self._refusal = _refusal(changed)
        if self._refusal is not None:
            raise self._refusal
        _advance_spectral_norms(self._bound.model)

    def before_saving(self) -> None:
        """Put back what the microbatches of a batch under way have left."""
        if self._before is not None:
            self._before.put_back()

    def _seed_of_all_ranks(self) -> int:
        """For numbers that all records of a batch share, on whichever rank they are."""
        words = np.empty(4, np.uint64)
        self._key.fill(words, purpose="numbers of a batch", name="torch", step=self._batches)
        self._batches += 1
        return int.from_bytes(words.tobytes(), "little")

    def open_again(self) -> list[str]:
        """Put everything back, and end the batch.

        Returns:
            What was written or exchanged though nothing but the release may do so.
        """
        before, self._before = self._before, None
        return [] if before is None else before.finish()


class _ModelState:
    """The state of a model before the first microbatch of a batch."""

    def __init__(self, model: nn.Module, trained: set[int], copies: dict[int, _Kept], seed: int) -> None:
        self._let_go_of_noise = hold_noise(model, seed)
        self._snapshot = ModelSnapshot(model)
        self._names = {id(local(p)): name for name, p in model.named_parameters()} | {
            id(b): name for name, b in model.named_buffers()
        }
        self.copies: dict[int, _Kept] = {}
        self._exchanged: dict[str, None] = {}  # names of parameters, in order
        self._fixed: list[_Kept | _Marked] = []  # may not be written
        self._loose: list[_Kept] = []  # put back
        for tensor in filter(_has_values, map(local, self._snapshot.tensors)):
            if id(tensor) in trained or (isinstance(tensor, nn.Parameter) and tensor.nbytes <= _KEPT_BYTES):
                kept = self.copies[id(tensor)] = _Kept.of(tensor, copies.get(id(tensor)))
                self._fixed.append(kept)
            elif tensor.nbytes <= _KEPT_BYTES:
                self._loose.append(_Kept.of(tensor))
            else:
                self._fixed.append(_Marked(tensor, content_mark(_without_repeats(tensor))))
        self._extra = [
            (part, deepcopy(part.get_extra_state()))
            for part in model.modules()
            if type(part).get_extra_state is not nn.Module.get_extra_state
        ]
        self._reseed = seed_secretly(self._snapshot.generators)
        self._seed = torch.initial_seed()

    def keep_secret(self) -> None:
        """Seed generators secretly once more, whatever has seeded them since."""
        seed_secretly_again(self._snapshot.generators)
        self._seed = torch.initial_seed()

    def is_seeded_since(self) -> bool:
        """Whether torch's generator has another seed than it was given."""
        return torch.initial_seed() != self._seed

    def put_back(self) -> None:
        """All but the values of parameters and of tensors too large for a copy."""
        self._exchanged |= dict.fromkeys(self._snapshot.exchanged())
        self._snapshot.put_back()
        for kept in self._loose:
            kept.put_back()

    def finish(self) -> list[str]:
        """Put back everything, also parameters; return the names of those that were not as before."""
        self.put_back()
        changed = list(self._exchanged)
        flags = _as_bools([fixed.is_changed() for fixed in self._fixed])
        for fixed in compress(self._fixed, flags):
            fixed.put_back()
            changed.append(self._names.get(id(fixed.tensor), "a tensor of an attribute"))
        for part, state in self._extra:
            if not _is_equal(part.get_extra_state(), state):
                part.set_extra_state(state)
                if not _is_equal(part.get_extra_state(), state):
                    changed.append(f"the extra state of {type(part).__name__}")
        self._let_go_of_noise()
        self._reseed()
        return changed


@dataclass(frozen=True)
class _Kept:
    """A tensor and a copy of its values."""

    tensor: Tensor
    copy: Tensor

    @classmethod
    def of(cls, tensor: Tensor, last: _Kept | None = None) -> _Kept:
        """A copy, in the memory of the last one if that fits: fresh memory takes several times as long."""
        values = _without_repeats(tensor.detach())
        if last is None or last.tensor is not tensor or not _fits(values, last.copy):
            return cls(tensor, values.clone())
        last.copy.copy_(values)
        return last

    def is_changed(self) -> bool | Tensor:
        values = _without_repeats(self.tensor.detach())
        if not _fits(values, self.copy):
            return True
        bits, copied = _bits(values), _bits(self.copy)
        if bits.device.type != "cpu":
            return (bits != copied).any()
        return not np.array_equal(bits.numpy(), copied.numpy())  # half the time of torch.equal

    def put_back(self) -> None:
        with torch.inference_mode(self.tensor.is_inference()):
            values = _without_repeats(self.tensor.data)  # writes that no version counter and no graph sees
            if _fits(values, self.copy):
                values.copy_(self.copy)
            else:
                self.tensor.data = self.copy.clone()


@dataclass(frozen=True)
class _Marked:
    """A tensor that is too large for a copy, and the mark of its bits."""

    tensor: Tensor
    mark: Tensor

    def is_changed(self) -> bool | Tensor:
        return (content_mark(_without_repeats(self.tensor)) != self.mark).any()

    def put_back(self) -> None:
        """Its values are not known any more, and those of the batch must not stay."""
        values = _without_repeats(self.tensor.data)
        values.fill_(torch.nan if values.is_floating_point() else 0)


def _has_values(tensor: Tensor) -> bool:
    """Whether the tensor is an ordinary one, with memory of its own: not sparse, quantised, lazy or a wrapper."""
    ordinary = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
    return ordinary and not is_lazy(tensor) and not is_traceable_wrapper_subclass(tensor) and tensor.numel() > 0


def _fits(values: Tensor, copy: Tensor) -> bool:
    return values.shape == copy.shape and values.dtype == copy.dtype and values.device == copy.device


def _bits(values: Tensor) -> Tensor:
    """The bits as whole numbers, as wide as the memory allows; not-a-number equals itself."""
    values = values.contiguous()
    whole = (values.storage_offset() * values.element_size()) % 8 == 0 and values.nbytes % 8 == 0
    return values.view(-1).view(torch.int64 if whole else torch.uint8)


def _without_repeats(tensor: Tensor) -> Tensor:
    """An expanded tensor without its repetitions."""
    for axis, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def _as_bools(flags: list[bool | Tensor]) -> list[bool]:
    """Read flags on accelerators in one transfer."""
    tensors = [flag for flag in flags if isinstance(flag, Tensor)]
    values = iter(torch.stack([flag.to(tensors[0].device) for flag in tensors]).tolist() if tensors else [])
    return [next(values) if isinstance(flag, Tensor) else flag for flag in flags]


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two states have the same structure, tensors of the same bits, and otherwise equal leaves."""
    (leaves, form), (others, other_form) = tree_flatten(one), tree_flatten(other)
    return form == other_form and all(map(_is_equal_leaf, leaves, others))


def _is_equal_leaf(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return _fits(one, other) and torch.equal(_bits(one.detach()), _bits(other.detach()))
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other)
    return type(one) is type(other) and bool(one == other)


@torch.no_grad()
def _advance_spectral_norms(model: nn.Module) -> None:
    """One power iteration of each spectral norm in training mode; other parametrizations with buffers likewise.

    They read the weights alone, so this tells nothing about the batch. In the forward pass each microbatch starts from
    the same vectors, so that the weights of a step are the same in all of them.
    """
    for module in model.modules():
        if isinstance(module, ParametrizationList) and module.training and next(module.buffers(), None) is not None:
            module()
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, SpectralNorm):
                hook.compute_weight(module, do_power_iteration=module.training)


_KNOWN_NUMBERS = (
    "torch's random generator was seeded between the reading of this microbatch and run.backward(), and has given "
    "numbers since. If the losses used them, there is no guarantee: by a seed that others know, one record more gives "
    "those behind it other masks, which others can compute. Seed torch before the first microbatch of a batch or after "
    "optimizer.step(); of several runs, end the batch of one before that of another begins"
)


def _refusal(changed: list[str]) -> PrivacyError:
    return PrivacyError(
        f"{first_few(changed)}: changed between the first microbatch of a batch and optimizer.step(), where only the "
        "release may change weights, because the change would be published without noise. The values from before were "
        f"put back (those above {_KEPT_BYTES >> 20} MiB that are not trained were erased), and this run cannot go on. "
        "Change weights before the batch's first microbatch or after optimizer.step(); give an embedding max_norm=None "
        "and rescale its weight there; keep what a call of the model computes in a buffer, which is put back after it"
    )


@runtime_checkable
class HoldsNoise(Protocol):
    """A hook before a module's forward pass, or what takes the place of its forward method, that draws noise for it."""

    def hold(self, module: nn.Module) -> None:
        """Draw noise now, which all forward passes have until it is let go.

        Raises:
            PrivacyError: noise is drawn within a forward pass.
        """
        ...

    def let_go(self) -> None:
        """Draw for each forward pass again."""
        ...


def hold_noise(model: nn.Module, seed: int) -> Callable[[], None]:
    """Draw the noise of a batch: all forward passes have it until the function that is returned is called.

    Records of one forward pass share a draw. With another draw for each microbatch, which records share one would
    depend on how many come before them, and one record more would move all those behind it to other draws. Likewise
    for each rank: which records a rank computes depends on the others of the batch.

    Args:
        model: whose parts may draw noise.
        seed: the same on all ranks.

    Raises:
        PrivacyError: noise is drawn within a forward pass, at each time step.
    """
    candidates = [
        (part, each)
        for part in model.modules()
        for each in (*part._forward_pre_hooks.values(), vars(part).get("forward"))
    ]
    found = [(part, each) for part, each in candidates if isinstance(each, HoldsNoise)]

    def let_go() -> None:
        for _, each in found:
            each.let_go()

    if not found:
        return let_go
    try:
        with torch_seeded(seed):
            for part, each in found:
                each.hold(part)
    except BaseException:
        let_go()
        raise
    return let_go
