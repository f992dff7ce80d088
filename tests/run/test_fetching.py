"""Microbatches ahead: the same records in the same order, of steps in the ledger alone, and without the key."""

import os
import pickle
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from noisette import Ledger, PrivateRun
from noisette.core.noise import SecretKey
from noisette.run.loading import Fetch, Processes, Thread, WorkerRecords, fetch_of, records_of
from small_loop import square, start, take_steps

X = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))


def run_on(dataset: Any, ledger: Ledger | None = None, steps: int = 6, **more: Any) -> PrivateRun:
    declared = {"expected_batch_size": 15, "sampling_rate": 0.05, "steps": steps, "ledger": ledger}
    return start(nn.Linear(4, 1), dataset, clip={"max_grad_norm": 1.0, "capture": "eager"}, **declared, **more)


def trained(run: PrivateRun, size: Any = 4, **loading: Any) -> int:
    """How many records were loaded, each of which is the one that was drawn."""
    loaded = 0
    for batch in run.batches(**loading):
        parts = [X[:0]]
        for x in batch.microbatches(size):
            run.accumulate(square, x)
            parts.append(x)
        assert torch.equal(torch.cat(parts), X[batch.indices])
        loaded += len(batch.indices)
        run.optimizer.step()
    return loaded


@pytest.mark.parametrize(("loading", "size"), [({"ahead": 0}, 4), ({}, "auto"), ({"ahead": 7, "to": "cpu"}, 4)])
def test_a_thread_loads_every_batch_whole(tmp_path, loading, size):
    with Ledger(tmp_path / "ledger") as ledger, run_on(X, ledger, steps=40) as run:
        assert trained(run, size, **loading) > 300


class Decoded(Dataset):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> torch.Tensor:
        return X[index]


class Died(Decoded):
    def __getitem__(self, index: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            os._exit(3)
        return X[index]


@pytest.mark.parametrize("silence", [0, 1e3])
def test_processes_load_every_batch_whole_and_a_long_start_is_said_once(silence, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("noisette.run.loading._SILENCE", silence)
    state = torch.get_rng_state()
    with Ledger(tmp_path / "ledger") as ledger, run_on(Decoded(), ledger, steps=40) as run:
        assert trained(run, workers=1, ahead=2, to="cpu") > 300
    torch.set_rng_state(state)
    said = [record.getMessage() for record in caplog.records if record.name == "noisette.run"]
    assert [message[:50] for message in said] == ["the processes that load records are starting (1): "] * (silence == 0)


def test_a_process_that_dies_ends_the_step_unreleased(tmp_path):
    with Ledger(tmp_path / "ledger") as ledger, run_on(Died(), ledger) as run:
        with pytest.raises(RuntimeError, match="a process that loads records died"):
            trained(run, workers=1)
        assert run.steps_taken == 0
        assert ledger.events[run.event] >= 1, "paid for"


def test_processes_get_no_key():
    """What is pickled for them holds no key, which would refuse, and no index."""
    with run_on(Decoded(), collate_fn=torch.stack) as run:
        worker = WorkerRecords(run._records.gather)
        assert torch.equal(pickle.loads(pickle.dumps(worker))[np.array([3, 5])], X[[3, 5]])
        assert set(vars(worker)) == {"gather"}
        fetch = fetch_of(run._records.gather, workers=1, ahead=1, to=None, expected=1.0)
        loader = fetch._source._loader  # pyright: ignore[reportAttributeAccessIssue]
        for given in (loader.dataset, loader.collate_fn, loader.worker_init_fn):
            pickle.dumps(given)
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps(run._sampler)
        with pytest.raises(TypeError, match="never pickled"):
            pickle.dumps([SecretKey()])


def holds(pid: int, secret: bytes) -> bool:
    """Whether the memory that a process can write to holds these bytes."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for start, end in (line.split()[0].split("-") for line in maps if line.split()[1].startswith("rw")):
            memory.seek(int(start, 16))
            with suppress(OSError):
                if secret in memory.read(int(end, 16) - int(start, 16)):
                    return True
    return False


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="memory of other processes is read as on Linux")
def test_no_process_that_loads_or_that_it_is_a_copy_of_has_the_key_in_its_memory():
    with run_on(Decoded()) as run:
        secret = run._key._secret
        fetch = fetch_of(run._records.gather, workers=1, ahead=1, to=None, expected=1.0)
        fetch(np.arange(2), iter(()))
        [worker] = fetch._source._loader._iterator._workers  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        copied = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[1]  # its parent
        assert int(copied) != os.getpid()
        assert holds(os.getpid(), secret)
        assert not holds(worker.pid, secret)
        assert not holds(int(copied), secret)
        fetch.close()


class Drawn:
    """The sampler of a run, which notes how many steps the ledger holds when a batch is drawn."""

    def __init__(self, run: PrivateRun) -> None:
        self.run = run
        self.sampler = run._sampler
        self.seen: list[tuple[int, int]] = []  # a step, and the steps in the ledger

    def indices(self, *, step: int) -> np.ndarray:
        self.seen.append((step, self.run.ledger.events[self.run.event]))
        return self.sampler.indices(step=step)


@pytest.mark.parametrize("on_disk", [True, False])
def test_batches_are_drawn_ahead_within_the_ledger(tmp_path, on_disk):
    """Far ahead, and at the end of every lease of three steps no further."""
    ledger = Ledger(tmp_path / "ledger") if on_disk else Ledger()
    with ledger, run_on(X, ledger, steps=60) as run:
        run._sampler = drawn = Drawn(run)  # pyright: ignore[reportAttributeAccessIssue]
        now = []
        for batch in run.batches(ahead=1000):
            for x in batch.microbatches(5):
                run.accumulate(square, x)
            now.append(max(step for step, _ in drawn.seen))
            run.optimizer.step()
    assert [step for step, _ in drawn.seen] == list(range(60)), "each once"
    assert all(step < reserved for step, reserved in drawn.seen)
    assert max(step - k for k, step in enumerate(now)) == (2 if on_disk else 0)


class Read(Decoded):
    def __init__(self) -> None:
        self.threads: set[threading.Thread] = set()

    def __getitem__(self, index: int) -> torch.Tensor:
        self.threads.add(threading.current_thread())
        return X[index]


def test_records_are_read_by_the_thread_of_the_loop():
    """Another thread would draw from the generators that the model uses meanwhile, and has no autocast of the loop."""
    records = Read()
    with run_on(records) as run:
        take_steps(run, square, size=2, ahead=3)
    assert records.threads == {threading.current_thread()}


def test_another_plan_drops_what_was_ahead():
    fetch = Fetch(Thread(lambda at: at.tolist(), ahead=2))
    whole = np.arange(12)

    def plan(start: int, size: int) -> Any:
        return iter([whole[k : k + size] for k in range(start + size, 12, size)])

    assert (fetch(whole[:2], plan(0, 2)), fetch(whole[2:6], plan(2, 4))) == ([0, 1], [2, 3, 4, 5])
    assert fetch(whole[2:4], plan(2, 2)) == [2, 3]
    assert fetch(whole[4:6], plan(0, 3)) == [4, 5], "of the plan before, which is kept while it holds"
    fetch.close()


def test_the_global_generator_does_not_see_how_often_processes_begin_anew():
    torch.manual_seed(0)
    source = Processes(records_of(Decoded()).gather, workers=1)
    state = torch.get_rng_state()
    for _ in range(2):
        assert len(list(source.microbatches(iter(np.arange(4).reshape(2, 2))))) == 2
    assert torch.equal(torch.get_rng_state(), state)
    source.close()


class Augmented(Decoded):
    """Records that draw random numbers, and take a while if a thread loads them ahead."""

    def __init__(self) -> None:
        self.seeds: set[int] = set()  # of the generator that they draw from

    def __getitem__(self, index: int) -> torch.Tensor:
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.002)
        self.seeds.add(torch.initial_seed())
        return X[index] + torch.rand(())


def test_nothing_is_drawn_ahead_between_steps(tmp_path):
    """There the generators have states that others can compute, and what is drawn would tell how much is ahead."""
    records, between = Augmented(), set[int]()
    with Ledger(tmp_path / "ledger") as ledger, run_on(records, ledger, steps=40) as run:
        for batch in run.batches():
            for x in batch.microbatches(30):
                run.accumulate(square, x)
            run.optimizer.step()
            between.add(torch.initial_seed())
            state = torch.get_rng_state()
            time.sleep(0.01)
            assert torch.equal(torch.get_rng_state(), state)
    assert between
    assert not between & records.seeds


class TellsItsSeed(Decoded):
    """Its records are whether torch's generator has the state that torch makes of a seed, of which it uses 32 bits."""

    def __getitem__(self, index: int) -> torch.Tensor:
        plain = torch.Generator().manual_seed(torch.initial_seed()).get_state()
        return torch.tensor(torch.equal(plain, torch.get_rng_state()))


def test_columns_are_gathered_by_a_thread_also_where_processes_are_asked_for():
    assert isinstance(fetch_of(records_of(X).gather, workers=2, ahead=1, to=None, expected=1.0)._source, Thread)


def test_processes_have_seeds_that_are_too_many_to_be_tried():
    source = Processes(records_of(TellsItsSeed()).gather, workers=1)
    [told] = list(source.microbatches(iter([np.arange(2)])))
    source.close()
    assert told.tolist() == [False, False]
