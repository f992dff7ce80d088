"""A small run of a sharded model, and the same of a whole one."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

from noisette import PerExampleClip, privatize
from ranks_loop import RECORDS, Course

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
    """The model on the ranks of the process group, if there is one."""
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


def take_steps(
    kind: str = "fsdp",
    *,
    rate: float = 0.2,
    dtype: torch.dtype = torch.float64,
    expected: float | None = None,
    size: Any = 3,
) -> Course:
    torch.manual_seed(2)
    model = sharded(Transformer().to(dtype), kind)
    clip = PerExampleClip(model, 0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    run = privatize(
        clip,
        optimizer,
        texts(),
        sampling_rate=rate,
        expected_batch_size=rate * RECORDS if expected is None else expected,
        steps=STEPS,
        noise_multiplier=1.1,
        delta=1e-3,
        allow_large_delta=True,
    )
    course = Course()
    with run:
        for batch in run.batches():
            course.indices.append(batch.indices.tolist())
            for x in batch.microbatches(size):
                run.accumulate(text_loss, x)
            optimizer.step()
            course.grads.append({name: whole(p.grad) for name, p in clip.parameters.items() if p.grad is not None})
        course.weights = {name: whole(p.detach()) for name, p in clip.parameters.items()}
        course.epsilon = run.epsilon(delta=1e-3)
        course.events = str(run.ledger.events)
    return course


def whole(tensor: Any) -> Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).clone()
