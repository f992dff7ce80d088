"""Loading of records: how those of a data set become one microbatch, of which size, and how they are fetched ahead.

The size of a microbatch bounds memory and nothing else: the sum over a batch does not depend on it.
"""

import logging
import math
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, islice
from pathlib import Path
from threading import Timer
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate

from noisette.core.batches import Batch, MicrobatchSize, Records
from noisette.core.steps import generator_apart, seed_secretly
from noisette.core.trees import map_leaves, tensors
from noisette.errors import PrivacyError, first_few, has_rows, warn, whole
from noisette.ranks import Alone, AnyRanks
from noisette.run.collation import PaddedBuckets, collated, joined

Gather = Callable[[np.ndarray], Any]  # indices of records -> one microbatch
Collate = Callable[[list[Any]], Any]  # a list of one record -> a microbatch of this record


class OwnRecords:
    """The part of a data set that this process holds: of each batch it loads the records that it holds.

    Args:
        dataset: the records of this process, in any form that :func:`noisette.privatize` takes.
        first: the place of its first record among all of them.
        of: the number of records of all processes together, as private as the length of a data set.

    Guarantee: none by itself; parts that overlap count records twice.

    Raises:
        TypeError, ValueError: the numbers are not whole, or this part ends beyond all records.
    """

    def __init__(self, dataset: Any, *, first: int, of: int) -> None:
        whole(first=first, of=of)
        self.part = without_frames(dataset)
        self.of = of
        self.own = range(first, first + records_of(self.part).size)
        if self.own.stop > of:
            raise ValueError(
                f"records {first} to {self.own.stop} are not a part of {of} records; give first, the place of the "
                "first record that this process holds, and of, the number of records of all processes"
            )

    def __repr__(self) -> str:
        return f"OwnRecords(first={self.own.start})"


def without_frames(dataset: Any) -> Any:
    """Arrays in place of tables of pandas: a frame is its columns by name, within others the matrix (n, columns)."""
    if _is_of_pandas(dataset) and dataset.ndim == 2:
        _array_of(dataset)  # which names all columns that hold no numbers
        return {str(name): column.to_numpy() for name, column in dataset.items()}
    if isinstance(dataset, tuple) and any(map(_is_of_pandas, dataset)):
        return tuple(map(_array_of, dataset))
    if isinstance(dataset, Mapping) and any(map(_is_of_pandas, dataset.values())):
        return {name: _array_of(part) for name, part in dataset.items()}
    return _array_of(dataset)


def _is_of_pandas(value: Any) -> bool:
    return hasattr(value, "iloc") and hasattr(value, "to_numpy")


def _array_of(values: Any) -> Any:
    if not _is_of_pandas(values):
        return values
    columns = {values.name: values.to_numpy()} if values.ndim == 1 else {n: c.to_numpy() for n, c in values.items()}
    if wrong := [repr(name) for name, column in columns.items() if column.dtype.kind not in "biuf"]:
        raise TypeError(
            f"{first_few(wrong)} of the frame hold no plain numbers: leave them out, or make numbers of all "
            "columns by what is declared about them, noisette.data.columns.Columns.read(SCHEMA).encode(frame)"
        )
    return columns[values.name] if values.ndim == 1 else np.column_stack(list(columns.values()))


def records_of(dataset: Any, collate_fn: Collate | None = None, dtype: torch.dtype | None = None) -> Records:
    """How records are loaded: rows of columns in one indexing call, and of other data sets each record by itself.

    Arrays in double precision come in the type ``dtype`` of the model, with a warning.

    Guarantee: no code of the data set's or the caller's sees two records at once.
    """
    if isinstance(dataset, OwnRecords):
        return replace(records_of(dataset.part, collate_fn, dtype), size=dataset.of, own=dataset.own)
    if collate_fn is default_collate:
        collate_fn = None
    if isinstance(dataset, PaddedBuckets):
        if collate_fn is not None:
            dataset.check_collate(collate_fn)
        padded = dataset.collate if collate_fn is None else EachAlone(dataset, collate_fn)
        return Records(len(dataset), padded, dataset.buckets)
    if isinstance(dataset, TensorDataset) and collate_fn is None:
        named = ("__getitem__", "__getitems__", "__len__")
        if all(getattr(type(dataset), name, None) is getattr(TensorDataset, name, None) for name in named):
            dataset = dataset.tensors  # no code of its own changes them
    columns = _columns_of(dataset)
    if columns is None:
        _check_records(dataset)
        return Records(len(dataset), EachAlone(dataset, collate_fn))
    if collate_fn is not None:
        raise TypeError(
            "collate_fn makes a microbatch of records, and these are columns: give a list of records, a TensorDataset, "
            "or another data set with __len__ and __getitem__"
        )
    if odd := [str(c.dtype) for c in columns if isinstance(c, np.ndarray) and c.dtype.kind not in "biufc"]:
        raise TypeError(
            f"a column is of type {odd[0]}, which is no number: make it one, as a date by (dates - dates_from) / "
            "numpy.timedelta64(1, 'D') and texts by a tokenizer"
        )
    held = tuple(each for each in columns if isinstance(each, Tensor))
    has_rows(held)
    if any(isinstance(column, np.ma.MaskedArray) for column in columns):
        raise TypeError("a column has masked values, which would be trained on; fill them, as by column.filled(0)")
    if len(lengths := {len(column) for column in columns}) != 1:
        raise ValueError(f"the columns of the data set differ in length: {sorted(lengths)}")
    doubles = any(isinstance(column, np.ndarray) and column.dtype == np.float64 for column in columns)
    cast = dtype if doubles and dtype not in (None, torch.float64) else None
    if cast is not None:
        warn(
            f"arrays of the data set have numbers of type float64, and the weights of the model {cast}: the loss gets "
            "them in that type. Give .astype(numpy.float32) to say so yourself, or take model.double()"
        )
    return Records(lengths.pop(), Rows(dataset, cast), columns=held)


def each_record(dataset: Any) -> Iterator[Any]:
    """The records one by one; of columns, the rows, each in the form of the data set."""
    if isinstance(dataset, OwnRecords):
        raise TypeError("users of OwnRecords are given as a list of ids, one for each record of all processes")
    records = records_of(dataset)
    for index in range(records.size):
        if isinstance(records.gather, Rows):
            yield tree_map(lambda rows: rows[0], records.gather(np.array([index])))
        else:
            yield dataset[index]


def _are_tensors(values: Sequence[Any]) -> bool:
    return all(isinstance(value, Tensor | np.ndarray) for value in values)


def _columns_of(dataset: Any) -> list[Tensor | np.ndarray] | None:
    if isinstance(dataset, Tensor | np.ndarray):
        return [dataset]
    if isinstance(dataset, tuple) and dataset and _are_tensors(dataset):
        return list(dataset)
    if not isinstance(dataset, Mapping):
        return None
    for name, column in dataset.items():
        if not isinstance(column, Tensor | np.ndarray):
            raise TypeError(
                f"{name!r} of the data set is a {type(column).__name__}, not a column: give tensors or arrays by name, "
                "or of several data sets (a DatasetDict) the one to train on"
            )
    return list(dataset.values())


def _check_records(dataset: Any) -> None:
    if isinstance(dataset, tuple) and any(isinstance(part, Tensor | np.ndarray) for part in dataset):
        raise TypeError(
            "a tuple of tensors has columns, but some of these are no tensors or arrays: give each as one, such as "
            "(x, torch.tensor(y)), or a list of records"
        )
    is_indexable = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__") and not isinstance(dataset, str)
    if isinstance(dataset, IterableDataset) or not is_indexable:
        raise TypeError(
            f"a {type(dataset).__name__} has no length and index by record, so its records cannot be drawn one by one; "
            "pass a data set with __len__ and __getitem__ (not a DataLoader: it has a sampler of its own)"
        )
    if not isinstance(dataset, list | tuple):
        return
    parts = tree_leaves(dataset[0]) if len(dataset) == 1 else dataset
    if not _are_tensors(parts):
        return
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in parts}
    differ = len(dataset) == 1 or len({(tensor.dtype, tensor.shape[1:]) for tensor in parts}) > 1
    if differ and len(lengths) == 1 and len(dataset) < (rows := lengths.pop()):
        raise ValueError(
            f"a {type(dataset).__name__} of {len(dataset)}, with tensors of {rows} rows, may mean {len(dataset)} "
            f"or {rows} records: give columns as a tuple of tensors, (x, y), or a dictionary, and records as a list"
        )


class EachAlone:
    """Gathers records of a data set that is indexed by record: each is fetched, and by ``collate`` collated, alone."""

    def __init__(self, dataset: Any, collate: Collate | None) -> None:
        self._dataset, self._collate = dataset, collate

    def __call__(self, at: np.ndarray) -> Any:
        records = [record(self._dataset, index) for index in at.tolist()]
        return collated(records) if self._collate is None else joined([self._collate([one]) for one in records])


def record(dataset: Any, index: int) -> Any:
    """One record, as the loader of torch fetches it for a batch of one; refused where it makes none or several."""
    if not hasattr(dataset, "__getitems__"):
        return dataset[index]
    found = dataset.__getitems__([index])
    if len(found) != 1:
        raise ValueError(
            f"the data set makes {len(found)} records of the one with index {index}: make one, or use map() beforehand"
        )
    return found[0]


class Rows:
    """Gathers rows of one column, or of each column of a tuple or a dictionary, and calls no code of the user."""

    def __init__(self, columns: Any, cast: torch.dtype | None = None) -> None:
        self._columns = dict(columns) if isinstance(columns, Mapping) else columns
        self._cast = cast  # of arrays in double precision
        self._are_flat = type(columns) is tuple and _are_tensors(columns)

    def __call__(self, at: np.ndarray) -> Any:
        if self._are_flat:  # as it is mostly; a tree takes as long as the rows
            return tuple([_rows(column, at, self._cast) for column in self._columns])
        return tree_map(partial(_rows, at=at, cast=self._cast), self._columns)

    def take_long(self, expected: float) -> bool:
        """Whether copying the rows of so many records takes longer than to have a thread do it."""
        columns = tree_leaves(self._columns)
        dense = [column for column in columns if not getattr(column, "is_sparse", False)]
        size = sum(column.nbytes / max(1, len(column)) for column in dense)
        return size * expected >= _LARGE or any(isinstance(column, np.memmap) for column in columns)


def _rows(column: Any, at: np.ndarray, cast: torch.dtype | None) -> Tensor:
    if isinstance(column, np.ndarray):
        return torch.as_tensor(np.asarray(column)[at], dtype=cast if column.dtype == np.float64 else None)
    return column.index_select(0, torch.as_tensor(at, device=column.device))  # quicker than column[at]


_SILENCE = 1.0  # seconds before a wait is announced
_LARGE = 2**22  # bytes
Parts = Iterator[np.ndarray]  # the indices of one microbatch after another


class Thread:
    """One thread of this process, or where nothing is loaded ahead, that of the caller."""

    def __init__(self, gather: Gather, ahead: int = 1, to: torch.device | None = None) -> None:
        self._gather, self._ahead, self._to = gather, ahead, to
        self._helper = ThreadPoolExecutor(max_workers=1)  # its thread starts with the first microbatch ahead

    def microbatches(self, parts: Parts) -> Iterator[Any]:
        """The microbatch of each part of a plan, in order. It may be left early, and then another one begins."""
        begun = list(islice(parts, 1 + self._ahead))
        if len(begun) == 1:  # there is nothing to do meanwhile
            for part in chain(begun, parts):
                yield self._sending(part)()
            return
        asked = deque(self._helper.submit(self._sending, part) for part in begun)
        while asked:
            yield asked.popleft().result()()
            asked.extend(self._helper.submit(self._sending, part) for part in islice(parts, 1))

    def close(self) -> None:
        """Nothing to do: a batch may outlive the loop that it came from, and an idle thread ends with its owner."""

    def _sending(self, part: np.ndarray) -> Callable[[], Any]:
        return _sending(self._gather(part), self._to)


class Processes:
    """Processes of a ``DataLoader``, each with ``ahead`` microbatches under way; they start with the first one.

    Guarantee: they get how records are gathered, and indices; never the key: the new process that they are copies
    of did not have it either.
    """

    def __init__(self, gather: Gather, workers: int, ahead: int = 1, to: torch.device | None = None) -> None:
        self._plan = _Plan(iter(()))
        self._to = to
        has_copies = "forkserver" in multiprocessing.get_all_start_methods()
        start = multiprocessing.get_context("forkserver" if has_copies else "spawn")
        start.set_forkserver_preload(["torch", __name__])  # not the script: copies would share its random generators
        self._loader = DataLoader(
            WorkerRecords(gather),  # pyright: ignore[reportArgumentType]
            sampler=self._plan,  # pyright: ignore[reportArgumentType]
            batch_size=None,
            num_workers=workers,
            collate_fn=torch.nn.Identity(),
            pin_memory=to is not None and to.type == "cuda",
            prefetch_factor=ahead,
            persistent_workers=True,
            multiprocessing_context=start,
            # The loader draws a seed for each plan, and the number of plans depends on private batches: from the global
            # generator, which is saved and goes on, it would show.
            generator=generator_apart(),
            worker_init_fn=seed_worker_secretly,
        )

    def microbatches(self, parts: Parts) -> Iterator[Any]:
        self._plan.parts = parts
        begun = "the processes that load records are starting (%d): each imports what script and data set need, once"
        announced = Timer(_SILENCE, logging.getLogger("noisette.run").warning, [begun, self._loader.num_workers])
        if self._loader._iterator is None:
            announced.start()
        try:
            for microbatch in self._loader:
                announced.cancel()
                yield _sending(microbatch, self._to)()
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error):
                raise
            raise RuntimeError(
                "a process that loads records died, perhaps for want of memory (of shared memory in a container). "
                "The step is not released, and stays paid for until the run is closed. Close the run and resume it "
                "from its checkpoint, with fewer workers or batches(workers=0)"
            ) from error
        finally:
            announced.cancel()

    def close(self) -> None:
        if (running := self._loader._iterator) is not None:
            running._shutdown_workers()  # pyright: ignore[reportAttributeAccessIssue]
            self._loader._iterator = None


class Fetch:
    """Hands out the microbatch that is asked for, from a plan that is made anew when another one comes."""

    def __init__(self, source: Thread | Processes) -> None:
        self._source = source
        self._planned: deque[np.ndarray] = deque()  # parts that were asked for and not yet handed out
        self._arriving: Iterator[Any] = iter(())

    def __call__(self, part: np.ndarray, plan: Parts) -> Any:
        """The microbatch with these indices; ``plan`` gives the parts that follow, also of batches drawn ahead."""
        if not self._planned or not np.array_equal(self._planned[0], part):
            self._arriving = self._source.microbatches(self._noted(chain([part], plan)))
        try:
            microbatch = next(self._arriving)
        except BaseException:
            self._planned.clear()  # whoever asks again begins anew
            raise
        self._planned.popleft()
        return microbatch

    def close(self) -> None:
        self._arriving = iter(())
        self._source.close()

    def _noted(self, parts: Parts) -> Parts:
        planned = self._planned = deque()  # a plan that was left notes nothing in that of its successor
        for part in parts:
            planned.append(part)
            yield part


def fetch_of(gather: Gather, workers: int, to: torch.device | str | None, ahead: int | None, expected: float) -> Fetch:
    """What fetches the microbatches of a run, as :meth:`noisette.PrivateRun.batches` describes it."""
    if ahead is None:
        ahead = 0 if to is None and isinstance(gather, Rows) and not gather.take_long(expected) else 1
    whole(workers=workers, ahead=ahead)
    device = None if to is None else torch.device(to)
    if not workers or isinstance(gather, Rows):  # of which a thread copies more than processes can send
        # A data set may draw from the generators that the model draws from meanwhile, and is used to one thread.
        return Fetch(Thread(gather, ahead if isinstance(gather, Rows) else 0, device))
    if not ahead:
        raise ValueError("processes load ahead: expected ahead to be at least 1 with workers, got 0")
    return Fetch(Processes(gather, workers, ahead, device))


@dataclass
class WorkerRecords:
    """What a loading process gets."""

    gather: Gather

    def __getitem__(self, at: np.ndarray) -> Any:
        return self.gather(at)


@dataclass
class _Plan:
    """The microbatches that a ``DataLoader`` asks for."""

    parts: Parts

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.parts


def seed_worker_secretly(worker: int) -> None:
    """Called in a loading process, in which the loader seeds torch with 32 bits that count."""
    seed_secretly()


def _sending(microbatch: Any, to: torch.device | None) -> Callable[[], Any]:
    """Begin to copy a microbatch to a device, on a stream of its own; gives what has it on the current stream."""
    if to is None or to.type != "cuda":
        moved = microbatch if to is None else _with_tensors(microbatch, lambda tensor: tensor.to(to, non_blocking=True))
        return lambda: moved
    with torch.cuda.stream(stream := _side_stream(to)):
        pinned = _with_tensors(microbatch, lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory())
        copy = _with_tensors(pinned, lambda tensor: tensor.to(to, non_blocking=True))
        done = stream.record_event()

    def arrived() -> Any:
        for tensor in tensors(copy):
            current = torch.cuda.current_stream(tensor.device)
            current.wait_event(done)
            tensor.record_stream(current)  # its memory is not given out again before the stream is done with it
        return copy

    return arrived


def _with_tensors(microbatch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return map_leaves(lambda leaf: change(leaf) if isinstance(leaf, Tensor) else leaf, microbatch)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


@dataclass(repr=False)
class JointBatch(Batch):
    """A rank's part of a batch: where it has fewer microbatches than another rank, blank ones follow.

    The calls of a sharded model need all ranks. A blank microbatch is a record of zeros, and is added to no sum.
    """

    ranks: AnyRanks = field(default_factory=Alone)

    def microbatches(self, size: int | Literal["auto"]) -> Iterator[Any]:
        own = super().microbatches(size)
        while True:
            microbatch = next(own, None)
            if not self.ranks.largest("a microbatch", {"left": microbatch is not None})["left"]:
                return
            if microbatch is not None:
                yield microbatch
                continue
            if not (self.records.size if self.records.own is None else len(self.records.own)):
                raise PrivacyError("a rank of a sharded model has no record; divide the records so that each has some")
            self.is_blank, self.current = True, 1
            yield _with_tensors(self.records.gather(np.arange(1)), torch.zeros_like)
            if self.current is not None:
                raise PrivacyError(
                    "a microbatch was not given to run.accumulate(): the ranks of a sharded model take each one "
                    "together, also where a rank has no examples left and gets a blank one"
                )
            self.is_blank = False


# The share of the free memory that a microbatch may take. An accelerator's allocator fragments its memory, and raises
# an error when it runs out; a processor's system kills the process instead.
_SHARE_ON_CUDA, _SHARE_ON_PROCESSOR = 0.8, 0.25
# A processor gains nothing from more examples at once, and a container's memory limit is not visible everywhere.
_MOST_ON_PROCESSOR, _MOST_UNMEASURED = 256, 32


class UnmeasuredMemory:
    """The memory of a system that tells nothing of it: ``most`` examples; ``fits`` is free over peak memory."""

    most: float = _MOST_UNMEASURED

    def begin(self) -> None: ...

    def fits(self) -> float:
        return math.inf

    def ran_out(self) -> None: ...


class CudaMemory(UnmeasuredMemory):
    """Peak of what PyTorch allocates on each device, against what was free there when the microbatch began."""

    most: float = math.inf

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self._before: dict[torch.device, tuple[int, int]] = dict.fromkeys(devices, (0, 0))  # allocated and free
        self._fragmented = False

    def begin(self) -> None:
        if self._fragmented:  # the exception that kept tensors alive is gone by now
            torch.cuda.empty_cache()
            self._fragmented = False
        for device in self._before:
            allocated = torch.cuda.memory_allocated(device)
            free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - allocated
            self._before[device] = allocated, free
            torch.cuda.reset_peak_memory_stats(device)

    def fits(self) -> float:
        return min(
            _SHARE_ON_CUDA * free / max(1, torch.cuda.max_memory_allocated(device) - allocated)
            for device, (allocated, free) in self._before.items()
        )

    def ran_out(self) -> None:
        self._fragmented = True


class ProcessMemory(UnmeasuredMemory):
    """Peak of the process's memory since its start, against what the system has; Linux, to 256 examples."""

    most: float = _MOST_ON_PROCESSOR

    def __init__(self) -> None:
        self._at_first = _kilobytes("/proc/self/status", "VmRSS")
        self._free = 0

    def begin(self) -> None:
        held = _kilobytes("/proc/self/status", "VmRSS") - self._at_first
        self._free = _kilobytes("/proc/meminfo", "MemAvailable") + held

    def fits(self) -> float:
        return _SHARE_ON_PROCESSOR * self._free / max(1, _kilobytes("/proc/self/status", "VmHWM") - self._at_first)


def _kilobytes(file: str, entry: str) -> int:
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{entry}:"):
            return int(line.split()[1])
    raise OSError(f"{file} has no entry {entry}")


def memory_of(devices: set[torch.device]) -> UnmeasuredMemory:
    """The memory measurement for these devices."""
    kinds = {device.type for device in devices}
    if kinds == {"cuda"}:
        return CudaMemory(devices)
    if kinds == {"cpu"} and Path("/proc/self/status").exists() and Path("/proc/meminfo").exists():
        return ProcessMemory()
    return UnmeasuredMemory()


class MeasuredSize(MicrobatchSize):
    """Doubles from one example while twice the last memory is free; half a size that failed is the most."""

    def __init__(self, memory: UnmeasuredMemory) -> None:
        super().__init__(1)
        self._memory = memory
        self._most = memory.most
        self._in_bucket: dict[int, Self] = {0: self}

    def in_bucket(self, bucket: int) -> Self:
        return self._in_bucket.setdefault(bucket, type(self)(self._memory))

    def begin(self) -> None:
        self._memory.begin()

    def end(self, examples: int) -> None:
        # The last microbatch of a batch may be smaller, and then tells nothing about the full size.
        if examples == self.now and 2 * examples <= self._most and self._memory.fits() >= 2:
            self.now = 2 * examples

    def halve(self, examples: int) -> bool:
        self._memory.ran_out()
        self.now = self._most = max(1, examples // 2)
        return examples > 1
