"""A private run by Ray Train, which makes the process group before it calls the function.

python examples/jobs/ray_train.py
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device
from torch import Tensor, nn

import noisette

FOLDER = Path("runs/ray")  # on a disk that all workers share


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of one example."""
    return F.cross_entropy(model(x), y)


def train(config: dict[str, str]) -> None:
    """What each worker does: neither ``prepare_model`` nor ``prepare_data_loader`` is called."""
    folder, device = Path(config["folder"]), get_device()
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)  # all workers have the same first weights and the same records
    x = torch.randn(2000, 8)
    records = x, (x.sum(1) > 0).long()
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    clip, checkpoint = noisette.PerExampleClip(model, max_grad_norm=1.0), folder / "checkpoint"
    resumes = checkpoint.exists()
    dist.barrier()  # before a worker writes one
    if resumes:
        run = noisette.PrivateRun.resume(checkpoint, clip, optimizer, records)
    else:
        run = noisette.privatize(
            clip,
            optimizer,
            records,
            public_size=2000,
            expected_batch_size=200,
            steps=20,
            epsilon=2.0,
            delta=1e-4,
            ledger=folder / "ledger.jsonl",
        )
    with run:
        for batch in run.batches():
            for part in batch.microbatches(64):
                run.accumulate(loss, *(column.to(device) for column in part))
            optimizer.step()
            optimizer.zero_grad()
            if run.steps_taken % 10 == 0:
                run.save(checkpoint)


if __name__ == "__main__":
    TorchTrainer(
        train,
        train_loop_config={"folder": str(FOLDER.resolve())},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=3)),
    ).fit()
