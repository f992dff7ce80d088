"""Microbatches fetched ahead: by one thread, or by processes that get indices of records and nothing else."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from noisette._internal.random_state import generator_apart, seed_worker_secretly
from noisette.core.trees import map_leaves
from noisette.sampling.loading import Gather, may_draw

Parts = Iterator[np.ndarray]  # the indices of one microbatch after another


class Source(Protocol):
    """Fetches the microbatches of a plan, some of them ahead."""

    def microbatches(self, parts: Parts) -> Iterator[Any]:
        """The microbatch of each part, in order. A plan may be left early, and then another one begins."""
        ...

    def close(self) -> None:
        """End the thread or the processes."""
        ...


class Thread:
    """One thread of this process, or where nothing is loaded ahead, that of the caller."""

    def __init__(self, gather: Gather, ahead: int = 1, to: torch.device | None = None) -> None:
        self._gather = gather if to is None else _Moved(gather, to)
        self._ahead = ahead
        self._helper = ThreadPoolExecutor(max_workers=1)  # its thread starts with the first microbatch ahead

    def microbatches(self, parts: Parts) -> Iterator[Any]:
        if not self._ahead:
            yield from (_arrived(self._gather(part)) for part in parts)
            return
        begun = list(islice(parts, 1 + self._ahead))
        if len(begun) == 1:  # there is nothing to do meanwhile
            yield _arrived(self._gather(begun[0]))
            return
        asked = deque(self._helper.submit(self._gather, part) for part in begun)
        while asked:
            yield _arrived(asked.popleft().result())
            asked.extend(self._helper.submit(self._gather, part) for part in islice(parts, 1))

    def close(self) -> None:
        """Nothing to do: a batch may outlive the loop that it came from, and an idle thread ends with its owner."""


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
        self._plan.parts = parts
        loaded = iter(self._loader)
        while True:
            try:
                microbatch = next(loaded)
            except StopIteration:
                return
            except RuntimeError as error:
                if "exited unexpectedly" not in str(error):
                    raise
                raise RuntimeError(
                    "a process that loads records died, perhaps for want of memory (of shared memory in a container). "
                    "The step is not released, and stays paid for until the run is closed. Close the run and resume it "
                    "from its checkpoint, with fewer workers or batches(workers=0)"
                ) from error
            yield microbatch if self._to is None else _arrived(_Copied(microbatch, self._to))

    def close(self) -> None:
        running = self._loader._iterator
        if running is not None:
            running._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]
            self._loader._iterator = None


class Fetch:
    """Hands out the microbatch that is asked for, from a plan that is made anew when something else comes.

    A new size of microbatches, or the same examples in halves after memory ran out, ends a plan: what was fetched ahead
    is dropped.
    """

    def __init__(self, source: Source) -> None:
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
            self._planned.clear()
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

    def _noted(self, parts: Iterable[np.ndarray]) -> Parts:
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
        # Code of the user's may draw from the generators of this process. What computes meanwhile draws from the same
        # ones, and brings them into earlier states where it computes a block once more.
        return Fetch(Thread(gather, 0 if may_draw(gather) else ahead, device))
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


class _Moved:
    """Gathers a microbatch and begins its copy to a device."""

    def __init__(self, gather: Gather, to: torch.device) -> None:
        self._gather = gather
        self._to = to

    def __call__(self, at: np.ndarray) -> Any:
        microbatch = self._gather(at)
        if self._to.type == "cuda":
            microbatch = map_leaves(lambda leaf: leaf.pin_memory() if isinstance(leaf, Tensor) else leaf, microbatch)
        return _Copied(microbatch, self._to)


class _Copied:
    """A microbatch on its way to a device, on a stream of its own."""

    def __init__(self, microbatch: Any, to: torch.device) -> None:
        self._pinned = microbatch  # is kept until the copy is waited for
        self._stream = _side_stream(to) if to.type == "cuda" else None
        with torch.cuda.stream(self._stream):  # without effect on a processor
            self._copy = map_leaves(
                lambda leaf: leaf.to(to, non_blocking=True) if isinstance(leaf, Tensor) else leaf, microbatch
            )
            self._done = None if self._stream is None else self._stream.record_event()

    def arrive(self) -> Any:
        """The copy, for use on the current stream."""
        if self._done is not None:
            current = torch.cuda.current_stream(self._stream.device)  # pyright: ignore[reportOptionalMemberAccess]
            current.wait_event(self._done)
            map_leaves(lambda leaf: _used_on(leaf, current), self._copy)
        return self._copy


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def _used_on(leaf: Any, stream: torch.cuda.Stream) -> Any:
    if isinstance(leaf, Tensor) and leaf.is_cuda:
        leaf.record_stream(stream)  # its memory is not given out again before the stream is done with it
    return leaf


def _arrived(microbatch: Any) -> Any:
    return microbatch.arrive() if isinstance(microbatch, _Copied) else microbatch
