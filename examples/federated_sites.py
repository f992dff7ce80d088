"""Sites train one model, with a guarantee for each record: nobody can tell whether it was among those of its site.

    python examples/federated_sites.py

Each site trains by its own private run with its own ledger. Only released weights leave it, so the sites need not trust
the server, or each other. A record lies at one site, and costs what the ledger of that site says.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import noisette

FEATURES, CLASSES = 10, 3
SIZES = (2000, 1000, 500)  # public numbers of records; they need not be exact
ROUNDS, STEPS = 10, 4  # steps of a site between two averages


def network() -> nn.Module:
    """The model, with the same first weights everywhere."""
    torch.manual_seed(0)
    return nn.Linear(FEATURES, CLASSES)


def records_of(site: int, size: int) -> tuple[Tensor, Tensor]:
    """The records of a site. Yours never leave it."""
    x = torch.randn(size, FEATURES, generator=torch.Generator().manual_seed(1 + site))
    return x, x[:, :CLASSES].argmax(1)


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of one example."""
    return F.cross_entropy(model(x), y)


class Site:
    """What runs at one site."""

    def __init__(self, number: int, ledger: Path) -> None:
        size = SIZES[number]
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.run = noisette.privatize(
            noisette.PerExampleClip(self.model, max_grad_norm=1.0),
            self.optimizer,
            records_of(number, size),
            public_size=size,
            expected_batch_size=size / 10,
            steps=ROUNDS * STEPS,  # of all rounds: they are one run, declared before the first
            epsilon=3.0,
            delta=1e-4,
            ledger=ledger,
        )
        self.batches = self.run.batches()

    def train(self, weights: dict[str, Tensor]) -> dict[str, Tensor]:
        """A few private steps from these weights."""
        self.model.load_state_dict(weights)
        for _ in range(STEPS):
            batch = next(self.batches)
            for part in batch.microbatches(256):
                self.run.accumulate(loss, *part)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self.model.state_dict()


def train(folder: Path) -> tuple[nn.Module, list[Site]]:
    """What the server does: average the weights of the sites by their public sizes."""
    model = network()
    sites = [Site(number, folder / f"site-{number}.jsonl") for number in range(len(SIZES))]
    for _ in range(ROUNDS):
        trained = [site.train(model.state_dict()) for site in sites]
        shares = [size / sum(SIZES) for size in SIZES]
        averaged = {
            name: sum(
                (share * weights[name] for share, weights in zip(shares, trained, strict=True)), torch.tensor(0.0)
            )
            for name in model.state_dict()
        }
        model.load_state_dict(averaged)
    for site in sites:
        site.run.close()
    return model, sites


def main() -> None:
    """Train, and say what each site has spent."""
    with TemporaryDirectory() as folder:
        model, sites = train(Path(folder))
    x, y = records_of(len(SIZES), 1000)
    accuracy = float((model(x).argmax(1) == y).float().mean())
    print(
        ", ".join(f"{site.run.epsilon(delta=1e-4):.2f}" for site in sites),
        f"spent by the sites, accuracy {accuracy:.2f}",
    )


if __name__ == "__main__":
    main()
