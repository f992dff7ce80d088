"""A run of a model whose parameters are sharded: the batches, sums, noise and costs of a single process."""

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional as F

from noisette import CyclicPoisson, PerExampleClip, Poisson, PrivateRun
from noisette.clipping.engines import BookKeeping
from noisette.core.clip import ClippedSum
from noisette.core.trace import ForwardPass
from noisette.errors import PrivacyError
from noisette.run import checkpoint as checkpoint_file
from process_group import alone, on_ranks
from ranks_loop import RECORDS, TERMS, Course, course_of, differences, whole
from small_loop import start
from small_loop import take_steps as all_steps

WORDS, LENGTH, WIDTH = 11, 5, 6
STEPS = 4


class Transformer(nn.Module):
    """Tied embedding, a parameter of its own, and shapes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 2, 7, 0.0, batch_first=True) for _ in range(2)])
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.frozen(h) * self.scale)


def texts() -> Tensor:
    return torch.randint(WORDS, (RECORDS, LENGTH), generator=torch.Generator().manual_seed(3))


def text_loss(model: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def sharded(model: Transformer, kind: str) -> nn.Module:
    if not dist.is_initialized():
        return model
    size = dist.get_world_size()
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicas", "shards"))
    else:
        mesh = init_device_mesh("cpu", (size,))
    options: dict[str, Any] = {"mesh": mesh}
    if kind == "kept":
        options["reshard_after_forward"] = False
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


def begin(model, *, rate=0.2, expected=12.0, bands=None, **more) -> PrivateRun:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    declared = TERMS | {"sampling_rate": rate, "expected_batch_size": expected, "steps": STEPS} | more
    declared |= {"allow_large_delta": True, "sampling": CyclicPoisson(bands) if bands else Poisson()}
    return start(model, (texts(),), optimizer=optimizer, clip={"max_grad_norm": 0.3}, **declared)


def take_steps(kind="fsdp", *, dtype=torch.float64, size=3, loss=text_loss, **declared) -> Course:
    torch.manual_seed(2)
    model = sharded(Transformer().to(dtype), kind)
    with begin(model, **declared) as run:
        return course_of(run, model, size, loss)


def spoilt(word: int) -> Course:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return text_loss(model, x) / (x[:, 0] != word).double().squeeze()

    return take_steps(loss=loss)


def start_and_save(folder: Path, steps: int) -> int:
    torch.manual_seed(2)
    model = sharded(Transformer().double(), "fsdp")
    with begin(model, ledger=folder / "ledger.jsonl") as run:
        all_steps(run, text_loss, size=3, steps=steps)
        model(texts()[:2, :-1])  # leaves whole parameters at the root
        run.save(folder / "checkpoint")
        return run.steps_taken


def restored(folder: Path) -> dict[str, Any]:
    """The weights and the optimizer's state of a run that goes on; then the rest of its steps."""
    torch.manual_seed(5)
    model = sharded(Transformer().double(), "fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    with PrivateRun.resume(folder / "checkpoint", PerExampleClip(model, 0.3), optimizer, (texts(),)) as run:
        found = {name: whole(p.detach()) for name, p in run.bound.parameters.items()}
        for k, values in enumerate(optimizer.state.values()):
            found |= {f"{k} {name}": whole(value) for name, value in values.items()}
        all_steps(run, text_loss, size=3)
        assert run.steps_spent == STEPS
    return found


def in_columns() -> nn.Module:
    model = Transformer()
    parallelize_module(model.blocks[0].linear1, init_device_mesh("cpu", (dist.get_world_size(),)), ColwiseParallel())
    return model


def refusals() -> dict[str, str]:
    low, whole = MixedPrecisionPolicy(param_dtype=torch.bfloat16), {"device_id": torch.device("cpu")}
    made = {
        "autocast": lambda: fully_shard(Transformer(), mp_policy=low),
        "use fully_shard": lambda: FullyShardedDataParallel(Transformer(), use_orig_params=True, **whole),
        "not supported yet": in_columns,
    }
    said = {}
    for way_out, make in made.items():
        torch.manual_seed(2)
        with pytest.raises(PrivacyError) as raised:
            PerExampleClip(make(), 1.0)
        said[way_out] = str(raised.value)
    return said


def run_out_once() -> Course:
    """Memory runs out once, on rank 1 alone, in a microbatch of several examples."""
    whole_sum, ran_out = BookKeeping.clipped_sum, []

    def clipped_sum(self: BookKeeping, forward: ForwardPass, *args: Any) -> ClippedSum:
        if not ran_out and len(forward.losses) > 1 and dist.is_initialized() and dist.get_rank() == 1:
            ran_out.append(1)
            raise torch.OutOfMemoryError("planted")
        return whole_sum(self, forward, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BookKeeping, "clipped_sum", clipped_sum)
        course = take_steps(size="auto")
    assert not dist.is_initialized() or dist.get_rank() != 1 or ran_out
    return course


@pytest.mark.parametrize(
    ("kind", "size", "settings"),
    [("fsdp", 2, {}), ("hsdp", 4, {}), ("kept", 2, {}), ("fsdp", 3, {"rate": 0.03}), ("hsdp", 4, {"bands": 3})],
)
def test_a_run_is_that_of_one_process(kind: str, size: int, settings: dict[str, float]) -> None:
    work = partial(take_steps, kind, **settings)
    truth = alone(work)
    courses = [outcome.value for outcome in on_ranks(size, work, known_key=True)]
    assert all(max(differences(course, truth)) < 1e-15 for course in courses)
    assert {(course.epsilon, course.events) for course in courses} == {(truth.epsilon, truth.events)}
    for parts in zip(truth.indices, *(course.indices for course in courses), strict=True):
        assert sorted(itertools.chain(*parts[1:])) == sorted(parts[0])


@pytest.mark.parametrize(
    ("kind", "size", "bands", "dtype"),
    [("fsdp", 3, None, torch.float32), ("hsdp", 4, None, torch.float64), ("fsdp", 2, 3, torch.float64)],
)
def test_the_noise_of_shards_is_the_same_bit_for_bit(kind, size, bands, dtype) -> None:
    work = partial(take_steps, kind, rate=1e-9, expected=10.0, dtype=dtype, bands=bands)
    truth = alone(work)
    for outcome in on_ranks(size, work, known_key=True):
        assert max(differences(outcome.value, truth)) == 0


@pytest.mark.filterwarnings("ignore:the loss of")
def test_records_without_a_finite_gradient_count_for_nothing() -> None:
    truth = alone(spoilt, 4)
    assert all(max(differences(o.value, truth)) < 1e-15 for o in on_ranks(3, spoilt, 4, known_key=True))


def test_memory_that_runs_out_on_one_rank_takes_the_microbatch_again_on_all() -> None:
    truth = alone(run_out_once)
    assert all(max(differences(o.value, truth)) < 1e-15 for o in on_ranks(2, run_out_once, known_key=True))


@pytest.mark.parametrize("size", [1, 3])
def test_a_run_goes_on_with_another_number_of_ranks(size: int, tmp_path: Path) -> None:
    assert [outcome.value for outcome in on_ranks(2, start_and_save, tmp_path, 2)] == [2, 2]
    content = checkpoint_file.read(tmp_path / "checkpoint")["learned"]
    results = [alone(restored, tmp_path)] if size == 1 else [o.value for o in on_ranks(size, restored, tmp_path)]
    for found in results:
        for name, weight in content["weights"].items():
            assert name not in found or torch.equal(found[name], weight)
        for k, values in content["state"]["state"].items():
            assert all(torch.equal(found[f"{k} {name}"], value) for name, value in values.items())


def test_what_cannot_be_done_is_refused_with_the_remedy() -> None:
    for outcome in on_ranks(2, refusals):
        assert all(way_out in said for way_out, said in outcome.value.items()), outcome.value
