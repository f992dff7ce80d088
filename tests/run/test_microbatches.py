"""Pieces that find their own size: the sum, the noise and the bound are those of the whole batch, whatever fits."""

import contextlib
from dataclasses import dataclass, field
from typing import Any, Self
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model_cases import InBackward
from noisette import PerExampleClip
from noisette.run import loading
from noisette.run.loading import CudaMemory, ProcessMemory
from small_loop import start

SIZE = 45
X, Y = torch.randn(SIZE, 5, generator=torch.Generator().manual_seed(1)), torch.arange(SIZE) % 3


pytestmark = pytest.mark.usefixtures("known_key")


@dataclass
class Room:
    """Memory for so many examples; remembers what was at work in it."""

    examples: float
    most: float = float("inf")
    given_back: int = 0
    at_work: int = 0

    def begin(self) -> None:
        pass

    def fits(self) -> float:
        return self.examples / self.at_work

    def ran_out(self) -> None:
        self.given_back += 1


@dataclass
class Training:
    """A run of three steps over all records, whose backward pass runs out of memory beyond ``holds`` examples."""

    room: Room
    holds: float = float("inf")
    bound: float = 0.5
    seen: list[list[int]] = field(default_factory=list)  # records of each piece that was bounded
    tried: list[int] = field(default_factory=list)  # lengths of all pieces handed out
    released: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        self.clip = PerExampleClip(self.model, self.bound, capture="eager")
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        with mock.patch("noisette.run.private.memory_of", return_value=self.room):
            data = (X.double(), Y, torch.arange(SIZE))
            declared = {"sampling_rate": 1.0, "expected_batch_size": SIZE}
            self.run = start(self.model, data, optimizer=self.optimizer, clip=self.clip, **declared)
        self._take, self.clip.pop_sums = self.clip.pop_sums, self._watched_take

    def _watched_take(self) -> Any:
        parts = self._take()
        self.sums.append(torch.cat([g.double().flatten() for part in parts for g in part.grads]))
        return parts

    def piece(self, x: Tensor, y: Tensor, at: Tensor) -> None:
        self.tried.append(len(x))
        self.room.at_work = len(x)
        before = self.run._batch.bounded

        def in_backward(dy: Tensor) -> Tensor:
            if self.tried[-1] > self.holds:
                raise torch.OutOfMemoryError("out of memory, after most of the work was done")
            return dy

        def loss(model: nn.Module, x: Tensor, y: Tensor, at: Tensor) -> Tensor:
            return F.cross_entropy(InBackward.apply(model(x), in_backward), y)

        self.run.accumulate(loss, x, y, at)
        if self.run._batch.bounded > before:
            self.seen.append(at.tolist())

    def step(self) -> None:
        self.optimizer.step()
        self.released.append(torch.cat([p.grad.flatten().clone() for p in self.model.parameters()]))
        self.optimizer.zero_grad()

    def go(self, size: int | str) -> Self:
        with self.run:
            for batch in self.run.batches():
                for piece in batch.microbatches(size):
                    self.piece(*piece)
                self.step()
        return self


def lengths(training: Training) -> list[int]:
    return [len(part) for part in training.seen]


@pytest.mark.parametrize(
    ("room", "holds", "bound"),  # with 1e-3 all examples are clipped, with 1e3 none
    [(1e9, 1e9, 0.5), (12, 1e9, 1e-3), (1e9, 12, 1e3), (1, 1e9, 0.5), (1e9, 1, 0.5)],
)
def test_mechanism_is_that_of_the_whole_batch(room, holds, bound):
    whole = Training(Room(1e9), bound=bound).go(1000)
    cut = Training(Room(room), holds, bound=bound).go("auto")
    assert lengths(whole) == [SIZE] * 3
    assert len(cut.seen) > 3
    for step in range(3):
        torch.testing.assert_close(cut.sums[step], whole.sums[step], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(cut.released[step], whole.released[step], rtol=1e-12, atol=1e-12)
    assert sorted(record for part in cut.seen for record in part) == sorted([*range(SIZE)] * 3)


def test_size_doubles_while_it_fits_twice_and_is_remembered():
    assert lengths(Training(Room(17)).go("auto")) == [1, 2, 4, 8, 16, 14, 16, 16, 13, 16, 16, 13]


def test_memory_that_runs_out_halves_the_size_for_good():
    training = Training(Room(1e9), holds=6).go("auto")
    assert (training.tried[:7], training.tried.count(8)) == ([1, 2, 4, 8, 4, 4, 4], 1)
    assert training.room.given_back == 1


def test_one_example_that_does_not_fit_is_the_users_error():
    with pytest.raises(torch.OutOfMemoryError):
        Training(Room(1), holds=0).go("auto")


def test_memory_that_runs_out_in_the_models_call_can_be_met_by_going_on():
    """In a call of the loop's own, before the piece is given to the run."""
    whole, training = Training(Room(1e9)).go(1000), Training(Room(1e9))

    def logged(x: Tensor) -> None:
        if len(x) > 6:
            training.tried.append(-len(x))
            raise torch.OutOfMemoryError("out of memory")

    with training.run:
        for batch in training.run.batches():
            for _ in range(2):
                with contextlib.suppress(torch.OutOfMemoryError):
                    for piece in batch.microbatches("auto"):
                        logged(piece[0])
                        training.piece(*piece)
                    break
            training.step()
    assert [n for n in training.tried if n < 0] == [-8], "tried once"
    assert max(lengths(training)) == 4
    assert sorted(record for part in training.seen for record in part) == sorted([*range(SIZE)] * 3)
    torch.testing.assert_close(torch.stack(training.released), torch.stack(whole.released), rtol=1e-12, atol=1e-12)


def test_devices_count_what_their_allocator_can_still_hand_out(monkeypatch):
    peaks, emptied, anew = {0: 0, 1: 0}, [], []
    for name, answer in {
        "memory_allocated": lambda d: 100,
        "memory_reserved": lambda d: 300,
        "mem_get_info": lambda d: (800, 2000),
        "max_memory_allocated": lambda d: peaks[d.index],
        "reset_peak_memory_stats": lambda d: anew.append(d.index),
        "empty_cache": lambda: emptied.append(True),
    }.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    memory = CudaMemory([torch.device("cuda", 0), torch.device("cuda", 1)])
    memory.begin()
    assert anew == [0, 1]
    peaks |= {0: 200, 1: 300}  # of 1000 free bytes, four fifths may be used; the pieces took 100 and 200
    assert (memory.fits(), emptied) == (pytest.approx(4), [])
    memory.ran_out()
    assert emptied == [], "the error still holds the memory"
    memory.begin()
    memory.begin()
    assert emptied == [True]


def test_process_is_measured_where_the_system_tells(monkeypatch):
    files = {"VmRSS": 1000, "VmHWM": 1000, "MemAvailable": 80_000}
    monkeypatch.setattr(loading, "_kilobytes", lambda file, entry: files[entry])
    memory = ProcessMemory()
    files |= {"VmRSS": 3000, "VmHWM": 5000, "MemAvailable": 78_000}
    memory.begin()
    files["VmHWM"] = 11_000  # 10 000 above the start, where 80 000 were to be had and a quarter may be used
    assert (memory.fits(), memory.most) == (pytest.approx(2), 256)
