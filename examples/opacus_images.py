"""Image classification in a loop written for Opacus: only the import and one declared number differ.

    python examples/opacus_images.py --epochs 5 --epsilon 8

Trains on scikit-learn's digits; needs nothing to be downloaded.
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from noisette.integrations.opacus import PrivacyEngine

RECORDS = 1500  # declared, not counted


def small_cnn() -> nn.Module:
    """Two convolutions with group norm."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GroupNorm(8, 32),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4, 10),
    )


def digits() -> tuple[TensorDataset, Tensor, Tensor]:
    """Records to train on, and images and classes to test with."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).unsqueeze(1) / 16
    classes = torch.tensor(found.target)
    return TensorDataset(images[:RECORDS], classes[:RECORDS]), images[RECORDS:], classes[RECORDS:]


def main() -> None:
    """Train within the budget, and print accuracy and cost of each epoch."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    options = parser.parse_args()

    torch.manual_seed(0)
    train, images, classes = digits()
    model = small_cnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.0)
    criterion = nn.CrossEntropyLoss()
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=DataLoader(train, batch_size=options.batch, shuffle=True),
        target_epsilon=options.epsilon,
        target_delta=options.delta,
        epochs=options.epochs,
        max_grad_norm=1.0,
        public_size=RECORDS,
    )
    for epoch in range(options.epochs):
        model.train()
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(images).argmax(1) == classes).float().mean()
        print(f"epoch {epoch + 1}: test accuracy {accuracy:.1%}, epsilon {engine.get_epsilon(options.delta):.2f}")


if __name__ == "__main__":
    main()
