"""One forged long record must not change how any other record is padded, and so must not move its gradient.

Padded to the longest of the batch, with pooling over all positions, every other record gets another gradient as soon as
the long one joins. The models here pool without a mask on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from noisette import PaddedBuckets, PerExampleClip, privatize
from noisette.run.loading import MeasuredSize, UnmeasuredMemory

C, EDGES = 0.5, (4, 8, 16, 32)
MOST = 1 + 2.0**-13  # of the bound, for rounding
DECLARED: dict[str, Any] = {"expected_batch_size": 1, "sampling_rate": 1.0, "steps": 1, "noise_multiplier": 1e-9}
Record = tuple[Tensor, int]


def texts(records: int = 24, seed: int = 5) -> list[Record]:
    """Token ids of 1 to 12 positions, with a label."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 13, (records,), generator=draw).tolist()
    return [(torch.randint(1, 30, (n,), generator=draw), k % 3) for k, n in enumerate(lengths)]


class Pooled(nn.Module):
    """Averages the embeddings of all positions, padding included."""

    def __init__(self, pool: Callable[[Tensor], Tensor] = lambda h: h.mean(1)) -> None:
        super().__init__()
        self.words, self.hidden, self.out, self.pool = nn.Embedding(30, 6), nn.Linear(6, 6), nn.Linear(6, 3), pool

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.pool(torch.tanh(self.hidden(self.words(ids)))))


POOLS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda h: h.mean(1),
    "sum": lambda h: h.sum(1),
    "last position": lambda h: h[:, -1],
    "maximum": lambda h: h.amax(1),
    "root of the width": lambda h: h.sum(1) / h.shape[1] ** 0.5,
}


def model_with(pool: str) -> nn.Module:
    torch.manual_seed(2)
    return Pooled(POOLS[pool]).double()


def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(ids), y)


def released_sum(dataset: Any, pool: str, size: int | str = 100, holds: int = 10**6) -> Tensor:
    """The clipped sum of one batch of all records, through the public loop, whose memory holds so many examples."""
    model = model_with(pool)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    clip = PerExampleClip(model, C, capture="eager")
    with privatize(clip, optimizer, dataset, **DECLARED) as run:
        run._measured = MeasuredSize(UnmeasuredMemory())
        for batch in run.batches():
            for ids, y in batch.microbatches(size):
                with pytest.MonkeyPatch.context() as patch:
                    if len(ids) > holds:
                        patch.setattr(clip, "add", _out_of_memory)
                    run.accumulate(loss, ids, y)
            optimizer.step()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _out_of_memory(*batch: Any, **keywords: Any) -> None:
    raise torch.OutOfMemoryError("out of memory")


def alone(records: Sequence[Record], pool: str, width: Callable[[int], int]) -> Tensor:
    """The sum of the clipped gradients of records that are padded, and differentiated, one at a time."""
    model = model_with(pool)
    total = torch.zeros(sum(p.numel() for p in model.parameters()), dtype=torch.float64)
    for ids, label in records:
        row = torch.zeros(1, width(len(ids)), dtype=torch.int64)
        row[0, : len(ids)] = ids[: row.shape[1]]
        grads = torch.autograd.grad(F.cross_entropy(model(row), torch.tensor([label])), list(model.parameters()))
        one = torch.cat([g.flatten() for g in grads])
        total += one * min(1.0, C / float(one.norm()))
    return total


def bucket(length: int) -> int:
    return next((edge for edge in EDGES if edge >= length), EDGES[-1])


FORGED = {
    "long": (torch.full((32,), 7), 1),
    "beyond the last bucket": (torch.arange(5000) % 30, 2),
    "empty": (torch.zeros(0, dtype=torch.int64), 0),
    "at an edge": (torch.full((16,), 3), 0),
}


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_a_forged_record_moves_the_sum_by_no_more_than_the_bound(forged: Record, pool: str) -> None:
    records = texts()
    without, joined = (
        released_sum(PaddedBuckets(r, EDGES), pool) for r in (records, [*records[:9], forged, *records[9:]])
    )
    assert (joined - without).norm() <= C * MOST
    torch.testing.assert_close(joined - without, alone([forged], pool, bucket), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("size", "holds"), [(1, 99), (3, 99), (100, 99), ("auto", 99), ("auto", 2), ("auto", 1)])
def test_the_sum_is_that_of_records_padded_one_at_a_time(size: int | str, holds: int) -> None:
    records = [*texts(), *FORGED.values()]
    found = released_sum(PaddedBuckets(records, EDGES), "mean", size, holds)
    torch.testing.assert_close(found, alone(records, "mean", bucket), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_every_other_record_is_handed_out_in_the_same_form(forged: Record) -> None:
    records = texts()
    before, after = PaddedBuckets(records, EDGES), PaddedBuckets([forged, *records], EDGES)
    for k in range(len(records)):
        assert torch.equal(before[k][0], after[k + 1][0])
    for place in (0, 24):
        assert len(after[place][0]) in EDGES


def test_fields_of_a_tokenizer_reach_the_model_by_name() -> None:
    model = model_with("mean")
    records = [{"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": y} for ids, y in texts()]
    dataset = PaddedBuckets(records, EDGES, pad={"input_ids": 0, "attention_mask": 0})
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with privatize(PerExampleClip(model, C, capture="eager"), optimizer, dataset, **DECLARED) as run:
        for batch in run.batches():
            for fields in batch.microbatches("auto"):
                assert fields["input_ids"].shape == fields["attention_mask"].shape
                run.accumulate(loss, fields["input_ids"], fields["labels"])
            optimizer.step()
    found = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(found, alone(texts(), "mean", bucket), rtol=1e-6, atol=1e-7)
