"""Models whose parameters ``fully_shard`` has divided among the ranks.

Between calls of the model each parameter is a ``DTensor`` that holds a shard: the *held* one, which the optimizer has.
While the model runs there is a whole parameter in its place: the *seen* one, of which every rank computes gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from noisette.core.loss import is_sharded
from noisette.core.noise import WHOLE, Window
from noisette.errors import PrivacyError
from noisette.ranks.process_group import canonical_parameters


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that this rank holds; the tensor itself if it is not sharded."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    with torch.no_grad():
        return sharded.to_local()


def from_local(part: Tensor, like: Tensor) -> Tensor:
    """The sharded tensor of which this is the rank's part."""
    from torch.distributed.tensor import DTensor

    sharded: Any = like
    return DTensor.from_local(
        part, sharded.device_mesh, sharded.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def whole(tensor: Any) -> Any:
    """A sharded tensor put together from all ranks, which all call this; anything else as it is."""
    if not isinstance(tensor, Tensor) or not is_sharded(tensor):
        return tensor
    sharded: Any = tensor
    return sharded.full_tensor()


def part_of(complete: Tensor, like: Tensor) -> Tensor:
    """What of a whole tensor this rank holds, sharded as another one; all of it if that one is not sharded."""
    if not is_sharded(like):
        return complete
    sharded: Any = like
    part = complete.to(like.device)
    for axis, placement in enumerate(sharded.placements):
        if placement.is_shard():
            first, last = _rows_held(like, axis)
            part = part.narrow(placement.dim, first, last - first)
    return from_local(part.contiguous(), like)


def _rows_held(p: Tensor, axis: int) -> tuple[int, int]:
    """The first and the last entry, along the dimension that an axis of the mesh divides, that this rank holds."""
    sharded: Any = p
    size = p.shape[sharded.placements[axis].dim]
    chunk = -(-size // sharded.device_mesh.size(axis))
    first = min(size, chunk * sharded.device_mesh.get_local_rank(axis))
    return first, min(size, first + chunk)


def landed(total: Tensor, p: Tensor) -> Tensor:
    """This rank's part of the sum of all ranks' sums, given this rank's whole one, for a sharded parameter."""
    from torch.distributed.tensor import DTensor, Partial

    sharded: Any = p
    mesh = sharded.device_mesh
    everywhere = DTensor.from_local(total.contiguous(), mesh, [Partial()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=sharded.placements).to_local().contiguous()


def elements_held(p: Tensor) -> Window:
    """Which elements of a sharded parameter this rank holds; a PrivacyError where that is not known."""
    from torch.distributed.tensor import Replicate, Shard

    sharded: Any = p
    found: Window | None = None
    for axis, placement in enumerate(sharded.placements):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard or found is not None:
            raise PrivacyError(
                f"a parameter of shape {tuple(p.shape)} is divided as {sharded.placements}; use fully_shard on a mesh "
                "with one axis that shards, and replicate along the others"
            )
        inner = math.prod(p.shape[placement.dim + 1 :])
        first, last = _rows_held(p, axis)
        found = Window(first * inner, (last - first) * inner, p.shape[placement.dim] * inner) if last > first else WHOLE
    return found or WHOLE


class Shards:
    """The parts of a model that ``fully_shard`` was called on; none for an ordinary model.

    Raises:
        PrivacyError: it is sharded in a way that cannot be trained privately; all reasons are listed.
    """

    def __init__(self, root: nn.Module) -> None:
        self._modules: list[Any] = [
            m for m in root.modules() if "FSDPModule" in {kind.__name__ for kind in type(m).__mro__}
        ]
        self.reshard()
        named = dict(canonical_parameters(root))
        if problems := _problems(root, named, self._modules):
            raise PrivacyError("the model cannot be trained privately as it is sharded:\n  " + "\n  ".join(problems))
        self._held = named
        if self._modules:
            with self.gathered():
                self._check_seen(dict(canonical_parameters(root)))

    def __bool__(self) -> bool:
        return bool(self._modules)

    def reshard(self) -> None:
        """Leave each rank its shards alone; a call of the model may have left whole parameters at the root."""
        for module in self._modules:
            module.reshard()

    def held(self, names: Iterator[str] | Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters with these names as the optimizer has them."""
        return {name: self._held[name] for name in names}

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it every rank has the whole model, whose calls exchange nothing; afterwards its shards alone.

        The hooks of ``fully_shard`` cannot run inside of ``torch.func.vmap``, so they rest.
        """
        hooks: list[tuple[Any, dict[int, Any]]] = []
        for module in self._modules:
            module.unshard()
        try:
            for module in self._modules:
                for registered in (module._forward_pre_hooks, module._forward_hooks):
                    hooks.append((registered, dict(registered)))
                    for key, hook in list(registered.items()):
                        if type(getattr(hook, "__self__", None)).__name__ == "FSDPState":
                            del registered[key]
            yield
        finally:
            for registered, before in hooks:
                registered.clear()
                registered.update(before)
            self.reshard()

    def land(self, sums: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The sums of one microbatch with those of sharded parameters added up over the ranks: this rank's parts.

        All ranks exchange the same parameters in the same order, also those that no example of a rank has reached. The
        whole ``sums`` are used up; ``parameters`` are the seen ones that are trained.
        """
        left = dict(sums)
        found: dict[str, Tensor] = {}
        for name, seen in parameters.items():
            total = left.pop(name, None)
            if is_sharded(self._held[name]):
                dtype = seen.dtype if seen.dtype == torch.float64 else torch.float32
                total = torch.zeros(seen.shape, dtype=dtype, device=seen.device) if total is None else total.to(dtype)
                found[name] = landed(total, self._held[name])
            elif total is not None:
                found[name] = total
        return found

    def _check_seen(self, seen: Mapping[str, Tensor]) -> None:
        different = [
            name for name, p in seen.items() if p.dtype != self._held[name].dtype or p.device != self._held[name].device
        ]
        if different:
            raise PrivacyError(
                f"{', '.join(different[:5])}: computed in another precision or on another device than they are held. "
                "Call fully_shard without mp_policy and offload_policy, and compute the loss under torch.autocast"
            )


def _problems(root: nn.Module, named: Mapping[str, Tensor], modules: Sequence[Any]) -> list[str]:
    problems: list[str] = []
    kinds = {type(module).__name__ for module in root.modules()} | {type(p).__name__ for p in named.values()}
    if "FullyShardedDataParallel" in kinds or "FlatParameter" in kinds:
        problems.append("FullyShardedDataParallel (FSDP1) joins parameters into flat ones: use fully_shard instead")
    if any(hasattr(p, "ds_id") for p in named.values()):
        problems.append("DeepSpeed holds parameters out of sight: use fully_shard instead")
    for name, p in named.items():
        if is_sharded(p):
            try:
                elements_held(p)
            except PrivacyError as error:
                problems.append(f"{name}: {error}")
    if not modules and any(is_sharded(p) for p in named.values()):
        problems.append("its parameters are DTensors without fully_shard (tensor parallel), which is not supported yet")
    return problems
