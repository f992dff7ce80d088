"""Small networks with batch norm in every place, and public batches for them."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 3, 3, padding=1, bias=False), nn.BatchNorm2d(3)
        self.conv2, self.bn2 = nn.Conv2d(3, 4, 3, padding=1, stride=2), nn.BatchNorm2d(4)
        self.around, self.bn3 = nn.Conv2d(2, 4, 1, stride=2, bias=False), nn.BatchNorm2d(4)
        self.scores, self.bn4 = nn.Linear(4, 5), nn.BatchNorm1d(5, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn1(self.conv1(x)).tanh()
        y = self.bn2(self.conv2(y)) + self.bn3(self.around(x))
        return self.bn4(self.scores(y.relu().mean((2, 3))))


@dataclass(frozen=True)
class Network:
    make: Callable[[], nn.Module]
    shape: Sequence[int]


def chain(*parts: nn.Module) -> Callable[[], nn.Module]:
    return lambda: copy.deepcopy(nn.Sequential(*parts))


NETWORKS = {
    "linear": Network(
        chain(nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 5, bias=False), nn.BatchNorm1d(5)), (6,)
    ),
    "sequences": Network(
        chain(nn.Conv1d(2, 4, 3, groups=2), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5)), (2, 8)
    ),
    "images": Network(Residual, (2, 6, 6)),
    "volumes": Network(
        chain(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3)), (1, 3, 3, 3)
    ),
    "transposed": Network(
        chain(
            *(nn.ConvTranspose2d(2, 4, 3, stride=2, groups=2), nn.BatchNorm2d(4), nn.ReLU()),
            *(nn.ConvTranspose2d(4, 2, 2, bias=False), nn.BatchNorm2d(2), nn.Flatten()),
        ),
        (2, 3, 3),
    ),
    "behind an activation in place": Network(
        chain(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.BatchNorm1d(6), nn.Linear(6, 5)), (4,)
    ),
    "behind an activation": Network(
        chain(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(48, 5)), (2, 6, 6)
    ),
}


def network(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model in double precision with random parameters, nine public examples, six private ones."""
    torch.manual_seed(11)
    made = NETWORKS[name]
    model = made.make().double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    public, private = torch.randn(9, *made.shape).double(), torch.randn(6, *made.shape).double()
    return model, public + 0.5, 2 * private
