"""First weights for private training, learnt without anyone's data: from images of a random process.

Source: Tang, Panda, Sehwag & Mittal 2023, "Differentially private image classification by learning priors from random
processes". They learn from images of an untrained generator by a contrastive loss; here a network learns which kind of
dead leaves an image shows, which takes minutes on a processor.

    python examples/pretrain_on_dead_leaves.py --model papers.networks:cifar_tutorial --out leaves.safetensors

The layers whose size depends on the number of classes are left out of the file. A recipe then begins with it:

    [model]
    name = "papers.networks:cifar_tutorial"
    weights = "leaves.safetensors"
    frozen = ["features"]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from noisette.data.built_in_images import CLASSES, dead_leaves
from noisette.nn import MirrorAndShift, models
from noisette.nn.batch_norm import in_evaluation


def weights_for_any_classes(name: str, shape: tuple[int, ...], model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model without those of layers that depend on the number of classes."""
    other = models.build(name, shape, len(CLASSES) + 1).state_dict()
    sized = {key.rpartition(".")[0] for key, value in model.state_dict().items() if value.shape != other[key].shape}
    return {key: value.contiguous() for key, value in model.state_dict().items() if key.rpartition(".")[0] not in sized}


def learn(model: nn.Module, images: Tensor, kinds: Tensor, *, epochs: int, rate: float) -> None:
    """Train without privacy, which images of a random process do not need."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * -(-len(images) // _BATCH)
    falls = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    augment = MirrorAndShift(flip=False, shift=2)  # a mirror would turn rising bars into falling ones
    for epoch in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(images)).split(_BATCH):
            loss = F.cross_entropy(model(augment(images[rows])), kinds[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            falls.step()
            total += loss.item() * len(rows)
        print(f"epoch {epoch + 1}: loss {total / len(images):.3f}")


_BATCH = 128


def main() -> None:
    """Learn, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="papers.networks:cifar_tutorial", help="a model without batch norm")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--side", type=int, default=32, help="height and width of the images")
    parser.add_argument("--channels", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("leaves.safetensors"))
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    shape = (options.channels, options.side, options.side)
    model = models.build(options.model, shape, len(CLASSES))
    train, test = (
        [torch.as_tensor(part) for part in (split.inputs, split.targets)]
        for split in (
            dead_leaves(count, seed, side=options.side, channels=options.channels)
            for count, seed in ((options.images, options.seed), (1_000, options.seed + 1))
        )
    )
    learn(model, *train, epochs=options.epochs, rate=options.rate)
    with torch.no_grad(), in_evaluation(model):
        right = (model(test[0]).argmax(1) == test[1]).float().mean().item()
    print(f"kinds of leaves told apart: {right:.1%} (by chance {1 / len(CLASSES):.1%})")
    save_file(weights_for_any_classes(options.model, shape, model), options.out)
    print(f"weights in {options.out}")


if __name__ == "__main__":
    main()
