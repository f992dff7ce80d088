"""The processes of one run: messages by which they agree, sums that they add up, and models in wrappers.

A message is short, of a fixed size, and text that runs no code.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from noisette.core.loss import is_sharded
from noisette.core.noise import KEY_BYTES, SecretKey
from noisette.errors import MissingRuleError, PrivacyError, positive

MESSAGE_BYTES = 2048
_LONGEST_TEXT = 1200  # characters; in JSON a character may take several bytes
_KINDS = (PrivacyError, MissingRuleError, ValueError, TypeError, FileNotFoundError, OSError, MemoryError)
_ERRORS: Mapping[str, type[Exception]] = {kind.__name__: kind for kind in _KINDS}


@dataclass(frozen=True)
class Message:
    """What one rank says at a point where all ranks meet."""

    phase: str
    error: str = ""  # the type of what keeps it from going on
    text: str = ""  # that of the error
    numbers: Mapping[str, float] = field(default_factory=dict[str, float])

    @classmethod
    def refusing(cls, phase: str, error: BaseException) -> Self:
        names = [kind.__name__ for kind in type(error).__mro__]
        try:
            text = str(error)
        except Exception:
            text = "an error without a text"
        return cls(phase, next((name for name in names if name in _ERRORS), names[0]), text)

    def packed(self) -> Tensor:
        """The message as bytes; a text that is too long is cut."""
        for longest in (_LONGEST_TEXT, 200, 0):
            facts = [self.phase, self.error, self.text[:longest], dict(self.numbers)]
            content = json.dumps(facts, ensure_ascii=False).encode(errors="replace")
            if len(content) <= MESSAGE_BYTES:
                break
        return torch.frombuffer(bytearray(content.ljust(MESSAGE_BYTES)), dtype=torch.uint8)

    @classmethod
    def unpacked(cls, content: Tensor) -> Self:
        return cls(*json.loads(bytes(content.tolist())))


def are_together(messages: list[Message]) -> bool:
    """Whether all ranks are at the same point, from which they may go on together also after an error."""
    return len({message.phase for message in messages}) == 1


def refusal(messages: list[Message]) -> Exception | None:
    """What the first refusing rank met, or that the ranks are not at the same point."""
    for rank, message in enumerate(messages):
        if message.error:
            kind = _ERRORS.get(message.error)
            name = "" if kind else f"{message.error}: "
            return (kind or PrivacyError)(f"rank {rank}, at {message.phase}: {name}{message.text}")
    if are_together(messages):
        return None
    where = "; ".join(f"rank {rank} is at {message.phase}" for rank, message in enumerate(messages))
    return PrivacyError(
        f"the ranks of a run do different things: {where}. Every rank runs the same script, takes every batch and "
        "closes the run at the same step"
    )


TIMEOUT = 600.0  # seconds
_LONGEST = 1e8  # seconds; three years


class Ranks:
    """All processes as those of one run: each takes its part of every batch, and all release the same noised sum.

    Args:
        timeout: seconds that one rank waits for the others at most, before it raises.

    Guarantee: the secret key of rank 0 reaches the other ranks over the process group and is written nowhere. The ranks
    and the network between them are one trusted party: sums before noise travel over it.

    Raises:
        PrivacyError: there is no process group.
        ValueError: ``timeout`` is not a number above zero.
    """

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        positive(timeout=timeout)
        if not (dist.is_available() and dist.is_initialized()):
            raise PrivacyError(
                "the ranks of a run need a process group: start the script with torchrun, and call "
                "torch.distributed.init_process_group() first"
            )
        self._wait = wait = timedelta(seconds=min(timeout, _LONGEST))
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self._timeout = timeout
        self._is_broken = False
        self._control: Any  # on the processor, so that no GPU waits
        opened = [partial(dist.new_group, backend=backend, timeout=wait) for backend in ("gloo", None)]
        self._control, self._sums = [self._meeting("the start", group) for group in opened]
        self._shared: BaseException | None = None  # the error that all ranks raise

    def key(self) -> SecretKey:
        secret = torch.frombuffer(bytearray(os.urandom(KEY_BYTES)), dtype=torch.uint8)  # that of rank 0 takes its place
        self._meeting("the key", lambda: dist.broadcast(secret, group_src=0, group=self._control))
        return SecretKey(bytes(secret.tolist()))

    def share(self, indices: np.ndarray) -> np.ndarray:
        """This rank's part of a batch that every rank has drawn: sizes differ by at most one."""
        return indices[self.rank :: self.size]

    def from_first(self, what: str, compute: Callable[[], Any]) -> Any:
        """What the function returns on rank 0, as JSON, or raises there; the other ranks do not call it."""
        content = b""
        with self.unanimous(what):
            if self.rank == 0:
                content = json.dumps(compute()).encode()
        length = int(self.largest(what, {"bytes": len(content)})["bytes"])
        sent = torch.frombuffer(bytearray(content.ljust(length)), dtype=torch.uint8)
        self._meeting(what, lambda: dist.broadcast(sent, group_src=0, group=self._control))
        return json.loads(sent.numpy().tobytes())

    @contextmanager
    def unanimous(self, phase: str) -> Iterator[dict[str, float]]:
        """A context that ends on all ranks, or on none: an error in it on one rank is raised on all.

        Gives an empty dictionary for numbers that must be the same on all ranks at the end.
        """
        equal: dict[str, float] = {}
        try:
            yield equal
        except BaseException as error:
            if not self._is_broken:
                try:
                    told = self._exchanged(Message.refusing(phase, error))
                    self._is_broken, self._shared = not are_together(told), error
                except PrivacyError as unheard:
                    error.add_note(str(unheard))
            raise
        told = self.of_all(phase, equal)
        if different := [name for name in equal if len({numbers.get(name) for numbers in told}) > 1]:
            raise PrivacyError(f"the ranks differ at {phase}: {', '.join(different)}. Change them on all ranks alike")

    def largest(self, phase: str, numbers: Mapping[str, float]) -> dict[str, float]:
        """The largest of each number on all ranks; errors are those of :meth:`of_all`."""
        told = self.of_all(phase, numbers)
        return {name: max(of_rank[name] for of_rank in told) for name in numbers}

    def of_all(self, phase: str, numbers: Mapping[str, float]) -> list[Mapping[str, float]]:
        """The numbers of each rank; a PrivacyError if one does not answer, refuses, or is at another phase."""
        messages = self._exchanged(Message(phase, numbers=numbers))
        if (error := refusal(messages)) is not None:
            self._is_broken, self._shared = not are_together(messages), error
            raise error
        return [message.numbers for message in messages]

    def check_equal(self, phase: str, facts: Callable[[], Mapping[str, object]]) -> None:
        """Check that these facts are the same on all ranks; a PrivacyError names all that differ, not their values."""
        own: dict[str, Any] = {}
        with self.unanimous(phase):
            own = json.loads(json.dumps(dict(facts())))
        first = self.from_first(phase, lambda: own)
        with self.unanimous(phase):
            if different := [name for name in own.keys() | first.keys() if own.get(name) != first.get(name)]:
                raise PrivacyError(
                    f"rank {self.rank} and rank 0 differ in: {', '.join(sorted(different))}. All ranks of a run need "
                    "the same versions, data, model, first weights and settings"
                )

    def add_up(self, sums: Sequence[Tensor]) -> None:
        """Replace each of these contiguous tensors by its sum over all ranks; bit for bit the same on each."""
        for tensor in sums:
            self._meeting("the sum over ranks", partial(dist.all_reduce, tensor, group=self._group_for(tensor)))

    def gather_into(self, whole: Tensor, part: Tensor) -> None:
        """Fill a contiguous tensor with the parts of all ranks, in the order of the ranks; a part may lie in it."""
        parts, group = list(whole.view(self.size, -1).unbind()), self._group_for(whole)
        self._meeting("the gathering of parts", lambda: dist.all_gather(parts, part, group=group))

    def in_time(self, phase: str, parameters: Iterable[Any], exchange: Callable[[], Any]) -> Any:
        """What an exchange of sharded parameters returns; their own connections wait for ranks as long as this run."""
        meshes = {p.device_mesh for p in parameters if is_sharded(p)}
        with ExitStack() as changed:
            for device, group in [(mesh.device_type, group) for mesh in meshes for group in mesh.get_all_groups()]:
                backend = group._get_backend(torch.device(device))
                changed.callback(backend._set_default_timeout, backend.options._timeout)
                backend._set_default_timeout(self._wait)
            return self._meeting(phase, exchange)

    def is_known_to_all(self, error: BaseException) -> bool:
        """Whether all ranks raise this error, as one of them has told it to the others."""
        return error is self._shared

    def all_close(self) -> bool:
        """Whether all ranks close the run now, so that none can still release a step that was reserved."""
        if self._is_broken:
            return False
        try:
            self.largest("the end of the run", {})
        except (PrivacyError, ValueError, TypeError, OSError):
            return False
        return True

    def close(self) -> None:
        """Close the connections of this object; those of torch's default group stay."""
        self._is_broken = True
        for group in (self._control, self._sums):
            if group is not None and dist.is_initialized():
                dist.destroy_process_group(group)
        self._control = self._sums = None

    def _group_for(self, tensor: Tensor) -> Any:
        """The connections for tensors of this device; those of a default group may be for GPUs alone."""
        return self._control if tensor.device.type == "cpu" else self._sums

    def _exchanged(self, own: Message) -> list[Message]:
        content = own.packed()
        received = [torch.zeros(MESSAGE_BYTES, dtype=torch.uint8) for _ in range(self.size)]
        self._meeting(own.phase, lambda: dist.all_gather(received, content, group=self._control))
        return [Message.unpacked(one) for one in received]

    def _meeting(self, phase: str, collective: Callable[[], Any]) -> Any:
        """What a call returns that needs all ranks; a PrivacyError if they do not meet."""
        if self._is_broken:
            raise PrivacyError(
                "the ranks no longer agree since an earlier error, or their connections were closed with the run that "
                "had them; start the script again, or give the next run noisette.Ranks() of its own"
            )
        try:
            return collective()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self._is_broken = True
            raise PrivacyError(
                f"rank {self.rank} met no answer at {phase}: another rank has ended, cannot be "
                f"reached, or did not come within {self._timeout:g} seconds. Steps that were reserved stay spent; "
                f"start the run again from its checkpoint ({error})"
            ) from error


# The attribute under which a wrapper holds its module, and the name of the wrapper's class.
_WRAPPERS = {
    "module": "DistributedDataParallel",
    "_orig_mod": "OptimizedModule",
    "_checkpoint_wrapped_module": "CheckpointWrapper",
}


def canonical_name(root: nn.Module, name: str) -> str:
    """The name of a parameter or buffer of a module, without the wrappers on its path.

    The noise of a parameter is drawn by its name, so a run must have the same names however its model is wrapped.
    """
    kept: list[str] = []
    module: object = root
    for part in name.split("."):
        if part not in _WRAPPERS or _WRAPPERS[part] not in {kind.__name__ for kind in type(module).__mro__}:
            kept.append(part)
        module = getattr(module, part, None)
    return ".".join(kept)


def canonical_parameters(root: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a module by their canonical names."""
    return ((canonical_name(root, name), p) for name, p in root.named_parameters())
