"""Models whose parameters ``fully_shard`` has divided among the ranks.

Between calls of the model each parameter is a ``DTensor`` that holds a shard: the *held* one, which the optimizer has.
While the model runs there is a whole parameter in its place: the *seen* one, of which every rank computes gradients.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from noisette.core.loss import is_sharded
from noisette.core.noise import WHOLE, Window
from noisette.errors import PrivacyError
from noisette.ranks.launch import Alone, AnyRanks
from noisette.ranks.process_group import canonical_parameters


def local(tensor: Any) -> Tensor:
    """The part of a tensor that this rank holds; the tensor itself if it is not sharded."""
    if not is_sharded(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def from_local(part: Tensor, like: Any) -> Tensor:
    """The sharded tensor of which this is the rank's part."""
    from torch.distributed.tensor import DTensor

    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(part, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


def whole(tensor: Any, ranks: AnyRanks) -> Any:
    """A sharded tensor put together from all ranks, which all call this; anything else as it is."""
    return ranks.in_time("the gathering of shards", [tensor], tensor.full_tensor) if is_sharded(tensor) else tensor


def part_of(complete: Tensor, like: Any) -> Tensor:
    """What of a whole tensor this rank holds, sharded as another one; all of it if that one is not sharded."""
    if not is_sharded(like):
        return complete
    part = complete.to(like.device)
    for axis, placement in enumerate(like.placements):
        if placement.is_shard():
            first, last = _rows_held(like, axis)
            part = part.narrow(placement.dim, first, last - first)
    return from_local(part.contiguous(), like)


def _rows_held(p: Any, axis: int) -> tuple[int, int]:
    """The first and the last entry, along the dimension that an axis of the mesh divides, that this rank holds."""
    size = p.shape[p.placements[axis].dim]
    chunk = -(-size // p.device_mesh.size(axis))
    first = min(size, chunk * p.device_mesh.get_local_rank(axis))
    return first, min(size, first + chunk)


def elements_held(p: Any) -> Window:
    """Which elements of a sharded parameter this rank holds; a PrivacyError where that is not known."""
    from torch.distributed.tensor import Replicate, Shard

    found: Window | None = None
    for axis, placement in enumerate(p.placements):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard or found is not None:
            raise PrivacyError(
                f"a parameter of shape {tuple(p.shape)} is divided as {p.placements}; use fully_shard on a mesh "
                "with one axis that shards, and replicate along the others"
            )
        inner = math.prod(p.shape[placement.dim + 1 :])
        first, last = _rows_held(p, axis)
        found = Window(first * inner, (last - first) * inner, p.shape[placement.dim] * inner) if last > first else WHOLE
    return found or WHOLE


class Shards:
    """The parts of a model that ``fully_shard`` was called on; none for an ordinary model."""

    def __init__(self, root: nn.Module) -> None:
        kinds = {module: {kind.__name__ for kind in type(module).__mro__} for module in root.modules()}
        self._modules: list[Any] = [module for module in kinds if "FSDPModule" in kinds[module]]
        self.reshard()
        self.parameters: dict[str, Any] = dict(canonical_parameters(root))  # as the optimizer has them
        if problems := _problems(root, self.parameters, self._modules):
            raise PrivacyError("the model cannot be trained privately as it is sharded:\n  " + "\n  ".join(problems))
        if self._modules:
            with self.gathered():
                seen = dict(canonical_parameters(root))
            held = self.parameters
            if different := [n for n, p in seen.items() if (p.dtype, p.device) != (held[n].dtype, held[n].device)]:
                raise PrivacyError(
                    f"{', '.join(different[:5])}: computed in another precision or on another device than held. Call "
                    "fully_shard without mp_policy and offload_policy, and compute the loss under torch.autocast"
                )

    def __bool__(self) -> bool:
        return bool(self._modules)

    def reshard(self) -> None:
        """Leave each rank its shards alone; a call of the model may have left whole parameters at the root."""
        for module in self._modules:
            module.reshard()

    @contextmanager
    def gathered(self, ranks: AnyRanks = Alone()) -> Iterator[None]:  # noqa: B008 - it holds nothing
        """Within it every rank has the whole model, whose calls exchange nothing; afterwards its shards alone.

        The hooks of ``fully_shard`` cannot run inside of ``torch.func.vmap``, so they rest.
        """
        hooks: list[tuple[Any, dict[int, Any]]] = []
        ranks.in_time("the gathering of shards", self.parameters.values(), lambda: [m.unshard() for m in self._modules])
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

    def land(self, sums: Mapping[str, Tensor], parameters: Mapping[str, Tensor], ranks: AnyRanks) -> dict[str, Tensor]:
        """The sums of one microbatch with those of sharded parameters added up over the ranks: this rank's parts.

        All ranks exchange the same ``parameters``, the seen ones that are trained, in the same order, also those that
        no example of a rank has reached.
        """
        from torch.distributed.tensor import DTensor, Partial

        found: dict[str, Tensor] = {}
        for name, seen in parameters.items():
            total, p = sums.get(name), self.parameters[name]
            if is_sharded(p):
                dtype = seen.dtype if seen.dtype == torch.float64 else torch.float32
                total = torch.zeros_like(seen, dtype=dtype) if total is None else total.to(dtype)
                mesh, everywhere = p.device_mesh, [Partial()] * p.device_mesh.ndim
                summed = DTensor.from_local(total.contiguous(), mesh, everywhere, run_check=False)
                share = partial(summed.redistribute, placements=p.placements)
                found[name] = local(ranks.in_time("the sum over shards", [p], share)).contiguous()
            elif total is not None:
                found[name] = total
        return found


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
