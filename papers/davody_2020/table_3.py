"""Table 3: accuracy on CIFAR-10 under noise on the weights."""

from __future__ import annotations

from functools import partial

from papers.davody_2020 import networks
from papers.davody_2020.grid import Row, networks_against_noise
from papers.davody_2020.runs import Setting
from papers.davody_2020.setting import NoisyWeights
from papers.davody_2020.table_2 import NORM_RATE, SIGMAS, rate

_PRINTED = {
    "resnet-18": ("93.50 ± 0.04", "89.05 ± 0.60", "89.41 ± 0.67", "86.76 ± 1.30", "87.83 ± 0.87"),
    "resnet-18-mod": ("93.60 ± 0.18", "88.65 ± 1.22", "88.16 ± 1.22", "85.46 ± 1.21", "83.95 ± 2.51"),
    "bn-resnet-18": ("93.55 ± 0.04", "93.59 ± 0.18", "93.46 ± 0.24", "92.72 ± 0.26", "92.10 ± 0.28"),
    "vgg-16": ("91.21 ± 0.16", "88.89 ± 0.56", "84.59 ± 6.11", "63.12 ± 8.21", "no convergence"),
    "vgg-16-mod": ("91.18 ± 0.20", "88.87 ± 0.59", "82.58 ± 6.91", "22.58 ± 5.0", "no convergence"),
    "bn-vgg-16": ("91.75 ± 0.22", "91.69 ± 0.20", "91.56 ± 0.24", "90.95 ± 0.25", "90.35 ± 0.14"),
}
_EPOCHS = 100
_NARROW = ("vgg-16-eighth", "bn-vgg-16-eighth", "resnet-18-eighth", "bn-resnet-18-eighth")
_NARROW_EPOCHS = 4
_NARROW_SHARE = 0.04  # of the time of a whole network
_NARROW_SIGMAS = (0.0, 0.1, 1.0)


def setting(row: str, sigma: float) -> NoisyWeights:
    """How a cell is trained; without a norm behind the last layer, its rate cannot grow as much with the noise."""
    is_narrow = row in _NARROW
    return NoisyWeights(
        data="cifar10",
        model=networks.narrow(row) if is_narrow else row,
        sigma=sigma,
        epochs=_NARROW_EPOCHS if is_narrow else _EPOCHS,
        batch_size=128,
        lr=rate(sigma, normalised=row.startswith("bn-")),
        lr_norms=NORM_RATE,
        patience=None,
    )


def _narrow(row: str, sigma: float) -> NoisyWeights | None:
    return setting(row, sigma) if sigma in _NARROW_SIGMAS else None


def seconds(setting: Setting) -> float:
    """From runs on a small machine."""
    assert isinstance(setting, NoisyWeights)
    of_epoch = 2000 if "resnet" in setting.model else 850
    return of_epoch * setting.epochs * (_NARROW_SHARE if "eighth" in setting.model else 1)


GRID = networks_against_noise(
    name="table-3",
    title="Table 3: CIFAR-10 under noise on the weights",
    about=(
        "As table 2. Training images are shifted by up to four pixels and mirrored at random. resnet-18 and vgg-16 "
        "have batch norm behind every convolution; those called bn- behind the last layer too, and those called -mod "
        f"lack the last of them. The rows of the paper are for a GPU: --full, {_EPOCHS} epochs.",
        "The rows called -eighth are what a processor can do, and what a command without --full makes: the same "
        f"networks with an eighth of the channels in every layer and {_NARROW_EPOCHS} epochs, for three amounts of "
        "noise. Set them against each other, not against the printed numbers.",
        "CIFAR-10 may come from files of JPEG images. These are not lossless, so their accuracies are not comparable "
        "with printed ones.",
    ),
    unit="σ",
    columns=SIGMAS,
    rows=(
        *(Row(row, printed, partial(setting, row)) for row, printed in _PRINTED.items()),
        *(Row(row, ("",) * len(SIGMAS), partial(_narrow, row)) for row in _NARROW),
    ),
    default=_NARROW,
    seconds=seconds,
)
