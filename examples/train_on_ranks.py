"""One private run on 1, 2 or N processes, each with a GPU of its own where there are GPUs.

    python examples/train_on_ranks.py
    torchrun --nproc-per-node=2 examples/train_on_ranks.py --wrap

Batches, noise, ledger and epsilon do not depend on the number of processes. Started again, it goes on from its
checkpoint, also with another number of them.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import noisette

RECORDS, FEATURES, CLASSES = 4000, 20, 5


def records() -> tuple[Tensor, Tensor]:
    """What every process reads: all records, the same ones in the same order. Yours come from files."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, FEATURES, generator=generator)
    return x, (x[:, :CLASSES] + 0.1 * torch.randn(RECORDS, CLASSES, generator=generator)).argmax(1)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of one example."""
    return F.cross_entropy(model(x), y)


def main() -> None:
    """Train, save after every tenth step, and say what it cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/ranks"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--stop-after", type=int, help="end early, as a crash would")
    parser.add_argument("--wrap", action="store_true", help="put the model into DistributedDataParallel")
    options = parser.parse_args()

    rank, device = 0, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if dist.is_torchelastic_launched():  # by torchrun, which says in the environment who is who
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        rank = dist.get_rank()

    torch.manual_seed(0)  # all ranks begin with the same weights
    model: nn.Module = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES)).to(device)
    if options.wrap and dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    clip, data, checkpoint = noisette.PerExampleClip(model, max_grad_norm=1.0), records(), options.out / "checkpoint"
    if rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
    resumes = checkpoint.exists()
    if dist.is_initialized():
        dist.barrier()  # before rank 0 writes one
    if resumes:
        run = noisette.PrivateRun.resume(checkpoint, clip, optimizer, data)
    else:
        run = noisette.privatize(
            clip,
            optimizer,
            data,
            public_size=RECORDS,
            expected_batch_size=400,
            steps=options.steps,
            epsilon=3.0,
            delta=1e-5,
            ledger=options.out / "ledger.jsonl",  # opened by rank 0 alone
        )
    with run:
        for batch in run.batches():
            for x, y in batch.microbatches(128):  # of this rank's part of the batch, which may be empty
                run.accumulate(loss, x.to(device), y.to(device))
            optimizer.step()  # all ranks: their sums are added up and noised once
            optimizer.zero_grad()
            if run.steps_taken % 10 == 0:
                run.save(checkpoint)
            if run.steps_taken == options.stop_after:
                break
        epsilon, weights = run.epsilon(delta=1e-5), torch.cat([p.detach().flatten() for p in model.parameters()])
    if rank == 0:
        x, y = data
        with torch.no_grad():
            accuracy = float((clip.model(x.to(device)).argmax(1) == y.to(device)).float().mean())
        print(f"steps {run.steps_taken}, epsilon {epsilon:.2f}, accuracy {accuracy:.2f}, weights {weights.norm():.4f}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
