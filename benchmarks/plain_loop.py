"""The baseline of end_to_end.py: ordinary training with the usual DataLoader, evaluated twenty times a run."""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import DataLoader, TensorDataset

from noisette import data
from noisette.nn import models
from noisette.training.recipe import default_recipe

F = torch.nn.functional


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--epochs", type=float, default=10)
    options = parser.parse_args()
    settings = default_recipe({"name": options.data})
    dataset = data.load(options.data)
    assert dataset.test is not None
    model = models.build(options.model, dataset.train.inputs.shape[1:], dataset.classes)
    train, test = (
        (torch.as_tensor(split.inputs), torch.as_tensor(split.targets)) for split in (dataset.train, dataset.test)
    )
    if isinstance(model, models.FixedFeatures):
        train, test = ((features(model.features, x), y) for x, y in (train, test))
        model = model.head
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(*train), batch_size=settings.training.batch_size, shuffle=True)
    steps, step = int(options.epochs * len(loader)), 0
    while step < steps:
        for inputs, targets in loader:
            F.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % max(1, steps // 20) == 0:
                print(step, accuracy(model, *test))
            if step == steps:
                break


@torch.no_grad()
def features(fixed: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    return torch.cat([fixed(part) for part in images.split(100)])


@torch.no_grad()
def accuracy(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> float:
    model.eval()
    right = sum(
        int((model(x).argmax(1) == y).sum()) for x, y in zip(inputs.split(2000), targets.split(2000), strict=True)
    )
    model.train()
    return right / len(targets)


if __name__ == "__main__":
    main()
