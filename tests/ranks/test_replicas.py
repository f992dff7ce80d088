"""A run on several ranks with a whole model each: the batches, sums, noise and costs of a single process."""

import itertools
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.data import TensorDataset

from noisette import Alone, OwnRecords, PerExampleClip, PrivacyError, PrivateRun, Ranks
from noisette.ranks import ranks_of
from noisette.ranks.process_group import canonical_parameters
from noisette.run import checkpoint
from process_group import alone, assert_refused, on_ranks
from ranks_loop import (
    DIFFERENCES,
    RECORDS,
    TERMS,
    components,
    differ,
    differences,
    drawn_words,
    network,
    records,
    take_steps,
)
from small_loop import start


@pytest.mark.parametrize(
    ("kind", "settings", "size"),
    [
        *(("plain", {}, 2), ("ddp", {}, 3), ("plain", {"adaptive": True}, 2)),
        *(("plain", {"rate": 0.02}, 4), ("plain", {"spoilt": True}, 2), ("plain", {"bands": 3}, 3)),
    ],
    ids=str,
)
def test_a_run_is_that_of_one_process(kind: str, settings: dict[str, object], size: int) -> None:
    work = partial(take_steps, kind, **settings)
    truth = alone(work)
    courses = [outcome.value for outcome in on_ranks(size, work, known_key=True)]
    for course in courses:
        assert max(differences(course, truth)) < 1e-15
        assert (course.epsilon, course.events) == (truth.epsilon, truth.events)
        assert all(torch.equal(course.weights[name], weight) for name, weight in courses[0].weights.items())
    for parts in zip(truth.indices, *(course.indices for course in courses), strict=True):
        assert sorted(itertools.chain(*parts[1:])) == sorted(parts[0])
        assert max(map(len, parts[1:])) - min(map(len, parts[1:])) <= 1


@pytest.mark.parametrize(("dtype", "bands"), [(torch.float32, 3), (torch.float64, None)], ids=str)
def test_the_noise_of_empty_batches_is_the_same_bit_for_bit(dtype: torch.dtype, bands: int | None) -> None:
    work = partial(take_steps, rate=1e-9, dtype=dtype, expected=10.0, bands=bands)
    truth = alone(work)
    for outcome in on_ranks(3, work, known_key=True):
        assert not any(outcome.value.indices)
        assert max(differences(outcome.value, truth)) == 0


@pytest.mark.parametrize("difference", list(DIFFERENCES))
def test_ranks_that_differ_are_refused_by_name(difference: str) -> None:
    assert_refused(on_ranks(2, differ, difference), DIFFERENCES[difference])


@pytest.mark.parametrize("told", [{"RANK": "0", "WORLD_SIZE": "2"}, {"SLURM_STEP_NUM_TASKS": "4"}], ids=str)
def test_without_a_process_group_torchrun_is_refused(told: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PrivacyError, match="init_process_group"):
        ranks_of(None)
    assert isinstance(ranks_of(Alone()), Alone)


def test_each_rank_has_a_key_of_its_own_only_alone() -> None:
    first, second = on_ranks(2, drawn_words)
    assert first.value == second.value
    again, _ = on_ranks(2, drawn_words)
    assert again.value != first.value


def test_principal_components_are_those_of_one_process() -> None:
    truth = alone(components, 500, 5000)
    assert [outcome.value for outcome in on_ranks(3, components, 500, 5000, known_key=True)] == [truth] * 3


@pytest.mark.parametrize("ends", [(20, 40), (60, 60)], ids=["a third each", "all on one"])
def test_ranks_that_hold_other_records_make_the_same_run(ends: tuple[int, int]) -> None:
    truth = alone(take_steps)
    parts = [(first, slice(first, end)) for first, end in itertools.pairwise((0, *ends, 60))]
    for outcome in on_ranks(3, partial(take_steps, parts=parts), known_key=True):
        assert max(differences(outcome.value, truth)) < 1e-15


@pytest.mark.parametrize(
    ("second", "said"), [((29, slice(29, 60)), "without overlaps"), ((30, slice(0, 30)), "ranks 0 and 1 hold the same")]
)
def test_a_record_that_two_ranks_hold_is_refused(second: tuple[int, slice], said: str) -> None:
    assert_refused(on_ranks(2, partial(take_steps, parts=[(0, slice(0, 30)), second])), said)


class Varying(TensorDataset):
    """Gives another value each time, as with random augmentation."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        x, y = super().__getitem__(index)
        return x + torch.randn_like(x), y


def start_slowly() -> None:
    """Start a run of which each rank takes longer to digest its records than ranks wait for each other."""
    whole = checkpoint._digest_of_dataset
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_digest_of_dataset", lambda *args: time.sleep(6) or whole(*args))
        start(
            network(), records(), ranks=Ranks(timeout=4), sampling_rate=0.3, expected_batch_size=18.0, **TERMS
        ).close()


def own_parts(ends: list[int], change: float = 0.0, kind: type[TensorDataset] = TensorDataset) -> OwnRecords:
    """The part of this rank, which ends there, of records that are moved by ``change``."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    first, (x, y) = [0, *ends][rank], records()
    return OwnRecords(kind(x[first : ends[rank]] + change, y[first : ends[rank]]), first=first, of=RECORDS)


def start_and_save(folder: Path, kind: type[TensorDataset]) -> None:
    declared = {"sampling_rate": 0.3, "expected_batch_size": 18.0, "ledger": folder / "ledger.jsonl", **TERMS}
    with start(network(), own_parts([20, 60], kind=kind), **declared) as run:
        run.save(folder / "checkpoint")


def resume(folder: Path, ends: list[int], change: float, kind: type[TensorDataset]) -> int:
    model = network()
    optimizer, data = torch.optim.SGD(model.parameters(), lr=0.1), own_parts(ends, change, kind)
    with PrivateRun.resume(folder / "checkpoint", PerExampleClip(model, 0.5), optimizer, data) as run:
        return run.steps_left


def test_no_rank_waits_while_another_one_digests_records() -> None:
    assert all(outcome.value is None for outcome in on_ranks(2, start_slowly))


@pytest.mark.parametrize("kind", [TensorDataset, Varying])
def test_a_resumed_run_knows_parts_of_records_however_they_are_divided(kind, tmp_path) -> None:
    assert [outcome.value for outcome in on_ranks(2, start_and_save, tmp_path, kind)] == [None, None]
    if kind is TensorDataset:
        other = on_ranks(2, resume, tmp_path, [20, 60], 1.0, kind)
        assert_refused(other, "not the one that the run began with", "ValueError")
    assert {outcome.value for outcome in on_ranks(3, resume, tmp_path, [10, 35, 60], 0.0, kind)} == {TERMS["steps"]}


class OptimizedModule(nn.Module):
    """Holds its module as that of ``torch.compile`` does, which warns where it is imported."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._orig_mod = module


def test_wrappers_are_left_out_of_names() -> None:
    inside = nn.Sequential(checkpoint_wrapper(nn.Linear(2, 2)), OptimizedModule(nn.Linear(2, 2)))
    whole, plain = OptimizedModule(inside), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert [name for name, _ in canonical_parameters(whole)] == [name for name, _ in plain.named_parameters()]


def test_data_parallel_is_refused() -> None:
    with pytest.raises(PrivacyError, match="torchrun"):
        PerExampleClip(nn.DataParallel(nn.Linear(2, 2)), 1.0)


COMMAND = """
import os, sys
from noisette.ranks import launched

with launched() as ranks:
    import torch.distributed.nn.functional

    assert ranks.size == 2
    ranks.of_all("a test", {})
for thread in os.listdir("/proc/self/task"):
    with open(f"/proc/self/task/{thread}/comm") as name:
        sys.stdout.write(name.read())
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads of C++ are listed on Linux alone")
def test_no_thread_of_the_process_group_outlives_it(tmp_path: Path) -> None:
    """While the interpreter ends, such a thread may free a tensor, and aborts the process: rarely, after a good run."""
    (tmp_path / "command.py").write_text(COMMAND)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "command.py"],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "gloo" not in done.stdout
