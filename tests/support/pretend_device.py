"""A device that computes on the processor and, like a GPU, refuses tensors of the processor beside its own.

It shows without a GPU where code makes a tensor without naming its device, and where it waits for a device: each value
that is read, each shape that depends on values, and each copy from or to the processor is noted.

To be used in a process in which no backward pass came before: torch counts its devices in the first one.
"""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "pretend"
_MOVES = {"_to_copy", "copy_"}
_READS = {"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "_unique2"}
# A GPU takes indices from the processor, and waits.
_WITH_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_"}
_WITH_LENGTHS = {"_pack_padded_sequence", "_pad_packed_sequence"}  # which are to lie on the processor
_RESHAPED = {"squeeze_", "unsqueeze_", "t_", "transpose_"}

waits: list[str] = []  # operations for which the processor waits, each with the line of the package that called it
mismatches: list[str] = []  # operations that met tensors of the processor


class OnDevice(Tensor):
    """A tensor of the device; what it holds lies on the processor."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> Self:
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        made = Tensor._make_wrapper_subclass(cls, raw.size(), device=torch.device(NAME, 0), **layout)
        made.raw = raw
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"OnDevice({self.raw!r})"

    def tolist(self) -> Any:
        waits.append(f"tolist at {_caller()}")
        return self.raw.tolist()

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.raw.untyped_storage()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _MakesTensors(TorchDispatchMode):
    """Sees the operations that make tensors of the device from nothing, or from tensors of the processor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _names_device(kwargs.get("device")) or any(isinstance(x, OnDevice) for x in tree_leaves((args, kwargs))):
            return _computed(func, args, kwargs)
        return func(*args, **kwargs)


# What ``torch.tensor(..., device=...)`` calls below all that the mode sees.
_KERNELS = torch.library.Library("aten", "IMPL")
_registered: list[bool] = []


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> OnDevice:
    return OnDevice(torch.empty_strided(size, stride, dtype=dtype))


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    waits.append(f"_copy_from at {_caller()}")
    _raw(target).copy_(_raw(source))
    return target


def _copy_(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return _copy_from(source, target, non_blocking)


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """Within it there is the device; nothing has waited for it."""
    if not _registered:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = backend_registration._DummyBackendModule()
            module.get_amp_supported_dtype = lambda: [torch.bfloat16]
            backend_registration._setup_privateuseone_for_python_backend(NAME, module)
        for name, function in (("empty_strided", _empty_strided), ("_copy_from", _copy_from), ("copy_", _copy_)):
            _KERNELS.impl(name, function, "PrivateUse1")
        _registered.append(True)
    waits.clear()
    mismatches.clear()
    with _MakesTensors():
        yield torch.device(NAME, 0)


def _names_device(device: Any) -> bool:
    return device is not None and torch.device(device).type == NAME


def _caller() -> str:
    frames = [frame for frame in traceback.extract_stack() if "/src/noisette/" in frame.filename]
    last = frames[-1] if frames else None
    return "outside" if last is None else f"{last.filename.split('/src/noisette/')[1]}:{last.lineno} {last.line}"


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    ours = [x for x in tensors if isinstance(x, OnDevice)]
    strange = [x for x in tensors if not isinstance(x, OnDevice) and x.dim()]  # of no axis: a number, for a GPU
    moves = name in _MOVES and _crosses(name, args, kwargs)
    if name in _READS or moves or (strange and name in _WITH_INDICES):
        waits.append(f"{func} at {_caller()}")
    if strange and name not in _MOVES | _WITH_INDICES | _WITH_LENGTHS:
        mismatches.append(f"{func} at {_caller()}")
        raise RuntimeError(f"expected all tensors to be on the same device: {mismatches[-1]}")
    raw = {key: _raw(value) for key, value in kwargs.items()}
    target = raw.get("device")
    if target is not None:
        raw["device"] = torch.device("cpu")
    out = func(*tree_map(_raw, args), **raw)
    if name in _RESHAPED:
        return _reshaped(func, args)
    if name.endswith("_") and not name.startswith(("_foreach", "__")):  # ``__and__`` is not in place
        return args[0]
    if not (_names_device(target) if target is not None else ours):
        return out
    known = {id(x.raw): x for x in ours}
    return tree_map(lambda x: known.get(id(x), OnDevice(x)) if isinstance(x, Tensor) else x, out)


def _crosses(name: str, args: Any, kwargs: dict[str, Any]) -> bool:
    if name == "copy_":
        return isinstance(args[0], OnDevice) != isinstance(args[1], OnDevice) and bool(args[1].dim())
    target = kwargs.get("device")
    return target is not None and _names_device(target) != isinstance(args[0], OnDevice)


def _raw(value: Any) -> Any:
    return tree_map(lambda x: x.raw if isinstance(x, OnDevice) else x, value)


def _reshaped(func: Any, args: Any) -> Any:
    """The tensor itself with another shape, which only torch's own operation can give it."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.Python).add(torch._C.DispatchKey.PythonTLSSnapshot)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        func(*args)
    return args[0]
