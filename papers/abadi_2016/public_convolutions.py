"""Learn the convolutions of the experiment on CIFAR-10 from images of a random process, which are nobody's records.

    python -m papers.abadi_2016.public_convolutions FILE [--network NAME]

They stand in for those that the paper learnt from CIFAR-100. Without labels, the network learns to find the two of many
pictures that are distorted copies of one image. Everything is drawn from one seed; another machine may round otherwise.
The networks with norms are those of table 6 of Davody et al. 2020.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import affine_grid, cross_entropy, grid_sample, normalize

from noisette.data.built_in_images import shaded_leaves
from noisette.nn import models
from noisette.training import keep_freed_memory
from papers import networks as networks  # which NETWORKS names

IMAGES, STEPS = 10_000, 150
_PAIRS, _OUTPUTS = 128, 64
_RATE, _TEMPERATURE = 1e-3, 0.2
NETWORK = "cifar-tutorial"  # its convolutions fit tf-tutorial too
NETWORKS = (NETWORK, "ln-tf-tutorial", "bn-tf-tutorial")
_SIDE = 24  # pixels a side of a picture, as many as the networks see


def learnt(images: Tensor, network: str = NETWORK, *, steps: int = STEPS, seed: int = 0) -> dict[str, Tensor]:
    """Return the weights of the convolutions, and the statistics of batch norms.

    Without norms the mean square of the features is 1 on these images.

    Args:
        images: public ones, (n, 3, 32, 32) in [0, 1].
        network: one of ``NETWORKS``.
        steps: how many batches of pairs.
        seed: of the first weights, the batches and the distortions.

    Source: Chen et al. 2020, "A Simple Framework for Contrastive Learning of Visual Representations"; from random
    processes Baradad et al. 2021, "Learning to See by Looking at Noise".
    """
    torch.manual_seed(seed)
    model = models.build(network, (3, _SIDE, _SIDE), _OUTPUTS)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _RATE, total_steps=steps)
    for _ in range(steps):
        batch = images[torch.randint(len(images), (_PAIRS,))]
        loss = contrast(model(torch.cat([distorted(batch), distorted(batch)])))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    features = model.get_submodule("features")
    if network == NETWORK:
        _to_unit_square(features, images[:1000])
    return {f"features.{name}": value.clone() for name, value in features.state_dict().items()}


def distorted(images: Tensor) -> Tensor:
    """Return a part of each image, enlarged, mirrored in half the cases, in other colours and with noise."""
    count = len(images)
    side = torch.empty(count, 2).uniform_(0.45, 0.8)
    mirrored = 1 - 2 * torch.randint(2, (count,))
    place = torch.zeros(count, 2, 3)
    place[:, 0, 0], place[:, 1, 1] = side[:, 0] * mirrored, side[:, 1]
    place[:, :, 2] = (1 - side) * torch.empty(count, 2).uniform_(-1, 1)
    grid = affine_grid(place, [count, images.shape[1], _SIDE, _SIDE], align_corners=False)
    pictures = grid_sample(images, grid, align_corners=False)
    grey = pictures.mean(1, keepdim=True)
    pictures = grey + torch.empty(count, 1, 1, 1).uniform_(0.3, 1.3) * (pictures - grey)
    gain, shift = 1 + 0.1 * torch.randn(count, 3, 1, 1), 0.05 * torch.randn(count, 3, 1, 1)
    return gain * pictures + shift + 0.03 * torch.randn_like(pictures)


def contrast(outputs: Tensor) -> Tensor:
    """Return the cross-entropy of finding the twin of each picture, half of the batch away, among all others."""
    count, directions = len(outputs), normalize(outputs)
    alike = directions @ directions.T / _TEMPERATURE
    alike = alike.masked_fill(torch.eye(count, dtype=torch.bool), -torch.inf)
    return cross_entropy(alike, torch.arange(count).roll(count // 2))


@torch.no_grad()
def _to_unit_square(features: nn.Module, images: Tensor) -> None:
    """Divide the last convolution, behind which nothing changes a scale, by the root mean square of the features."""
    scale = features(images).square().mean().sqrt()
    for p in features.get_submodule("conv2").parameters():
        p /= scale


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path, help="a safetensors file for --figure 6 (or --table 6) --weights FILE")
    parser.add_argument("--network", choices=NETWORKS, default=NETWORK, help="default: %(default)s, for figure 6")
    options = parser.parse_args()
    if not os.access(options.file.parent, os.W_OK):
        parser.error(f"{options.file.parent} is no folder that can be written to")
    keep_freed_memory()
    save_file(learnt(torch.from_numpy(shaded_leaves(IMAGES, seed=0)), options.network), options.file)


if __name__ == "__main__":
    main()
