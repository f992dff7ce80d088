"""Microbatches fetched ahead: by one thread, or by processes that get indices of records and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from noisette.core.state import generator_apart, seed_worker_secretly
from noisette.core.trees import map_leaves, tensors
from noisette.sampling.loading import Gather, Rows

Parts = Iterator[np.ndarray]  # the indices of one microbatch after another


class Thread:
    """One thread of this process, or where nothing is loaded ahead, that of the caller."""

    def __init__(self, gather: Gather, ahead: int = 1, to: torch.device | None = None) -> None:
        self._gather = gather
        self._ahead = ahead
        self._to = to
        self._helper = ThreadPoolExecutor(max_workers=1)  # its thread starts with the first microbatch ahead

    def microbatches(self, parts: Parts) -> Iterator[Any]:
        """The microbatch of each part of a plan, in order. It may be left early, and then another one begins."""
        begun = list(islice(parts, 1 + self._ahead))
        if len(begun) == 1:  # there is nothing to do meanwhile
            yield _arrived(self._sent(begun[0]))
            yield from (_arrived(self._sent(part)) for part in parts)
            return
        asked = deque(self._helper.submit(self._sent, part) for part in begun)
        while asked:
            yield _arrived(asked.popleft().result())
            asked.extend(self._helper.submit(self._sent, part) for part in islice(parts, 1))

    def close(self) -> None:
        """Nothing to do: a batch may outlive the loop that it came from, and an idle thread ends with its owner."""

    def _sent(self, part: np.ndarray) -> _Sent:
        return _Sent(self._gather(part), self._to)


class Processes:
    """Processes of a ``DataLoader``, each with ``ahead`` microbatches under way; they start with the first one.

    Guarantee: they get how records are gathered, and indices; never the key.

    Raises:
        RuntimeError: a process died.
    """

    def __init__(self, gather: Gather, workers: int, ahead: int = 1, to: torch.device | None = None) -> None:
        self._plan = _Plan()
        self._to = to
        self._loader = DataLoader(
            WorkerRecords(gather),  # pyright: ignore[reportArgumentType]
            batch_sampler=self._plan,  # pyright: ignore[reportArgumentType]
            num_workers=workers,
            collate_fn=_as_it_is,
            pin_memory=to is not None and to.type == "cuda",
            prefetch_factor=ahead,
            persistent_workers=True,
            multiprocessing_context="spawn",
            # The loader draws a seed for each plan, and the number of plans depends on private batches: from the global
            # generator, which is saved and goes on, it would show.
            generator=generator_apart(),
            worker_init_fn=seed_worker_secretly,
        )

    def microbatches(self, parts: Parts) -> Iterator[Any]:
        """The microbatch of each part of a plan, in order. It may be left early, and then another one begins."""
        self._plan.parts = parts
        try:
            for microbatch in self._loader:
                yield _arrived(_Sent(microbatch, self._to))
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error):
                raise
            raise RuntimeError(
                "a process that loads records died, perhaps for want of memory (of shared memory in a container). "
                "The step is not released, and stays paid for until the run is closed. Close the run and resume it "
                "from its checkpoint, with fewer workers or batches(workers=0)"
            ) from error

    def close(self) -> None:
        if (running := self._loader._iterator) is not None:
            running._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]
            self._loader._iterator = None


class Fetch:
    """Hands out the microbatch that is asked for, from a plan that is made anew when something else comes.

    A new size of microbatches, or the same examples in halves after memory ran out, ends a plan: what was fetched ahead
    is dropped.
    """

    def __init__(self, source: Thread | Processes) -> None:
        self._source = source
        self._planned: deque[np.ndarray] = deque()  # parts that were asked for and not yet handed out
        self._arriving: Iterator[Any] = iter(())

    def __call__(self, part: np.ndarray, plan: Callable[[], Parts]) -> Any:
        """The microbatch with these indices.

        Args:
            part: the indices.
            plan: makes the parts from this one on, of this batch and of those that may be drawn ahead.
        """
        if not self._planned or not np.array_equal(self._planned[0], part):
            self._arriving = self._source.microbatches(self._noted(plan()))
        try:
            microbatch = next(self._arriving)
        except BaseException:
            self._planned.clear()  # whoever asks again begins anew
            raise
        self._planned.popleft()
        return microbatch

    def close(self) -> None:
        """End the thread or the processes."""
        self._arriving = iter(())
        self._source.close()

    def _noted(self, parts: Parts) -> Parts:
        planned = self._planned = deque()  # a plan that was left notes nothing in that of its successor
        for part in parts:
            planned.append(part)
            yield part


def fetch_of(gather: Gather, *, workers: int, ahead: int, to: torch.device | str | None) -> Fetch:
    """What fetches the microbatches of a run, as :meth:`noisette.PrivateRun.batches` describes it.

    Raises:
        TypeError, ValueError: a number is not a whole number of at least 0, or processes have nothing to load ahead.
    """
    for name, number in (("workers", workers), ("ahead", ahead)):
        if type(number) is not int:
            raise TypeError(f"expected {name} to be a whole number, got a {type(number).__name__}")
        if number < 0:
            raise ValueError(f"expected {name} to be at least 0, got {number}")
    device = None if to is None else torch.device(to)
    if not workers:
        # A data set may draw from the generators that the model draws from meanwhile, and is used to one thread.
        return Fetch(Thread(gather, ahead if isinstance(gather, Rows) else 0, device))
    if not ahead:
        raise ValueError("processes load ahead: expected ahead to be at least 1 with workers, got 0")
    return Fetch(Processes(gather, workers, ahead, device))


class WorkerRecords:
    """What a loading process gets: how records are gathered."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather

    def __getitems__(self, at: list[int]) -> Any:
        return self._gather(np.asarray(at, dtype=np.int64))


class _Plan:
    """The microbatches that a ``DataLoader`` asks for."""

    def __init__(self) -> None:
        self.parts: Parts = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return (part.tolist() for part in self.parts)


def _as_it_is(microbatch: Any) -> Any:
    return microbatch


class _Sent:
    """A microbatch on its way to a device, on a stream of its own; without a device it is where it is."""

    def __init__(self, microbatch: Any, to: torch.device | None) -> None:
        self.copy = microbatch
        self.done: Any = None  # the event after the copy
        if to is not None and to.type == "cuda":
            # Is kept until the copy is waited for.
            self.pinned = _each(microbatch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())
            with torch.cuda.stream(stream := _side_stream(to)):
                self.copy = _each(self.pinned, lambda tensor: tensor.to(to, non_blocking=True))
                self.done = stream.record_event()
        elif to is not None:
            self.copy = _each(microbatch, lambda tensor: tensor.to(to, non_blocking=True))


def _each(microbatch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return map_leaves(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, microbatch)


def _arrived(sent: _Sent) -> Any:
    """The copy, for use on the current stream."""
    if sent.done is not None:
        for tensor in tensors(sent.copy):
            current = torch.cuda.current_stream(tensor.device)
            current.wait_event(sent.done)
            tensor.record_stream(current)  # its memory is not given out again before the stream is done with it
    return sent.copy


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
