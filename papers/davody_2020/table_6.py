"""Table 6: accuracy on CIFAR-10 when the head of a pretrained network is trained privately."""

from __future__ import annotations

from collections.abc import Callable

from papers.davody_2020 import schedules
from papers.davody_2020.grid import Row, networks_against_noise
from papers.davody_2020.private import Private
from papers.davody_2020.runs import Setting

EPSILONS = tuple(schedules.TABLE_6)
# (what is printed, the network, what takes the place of its batch norms)
_ROWS: dict[str, tuple[tuple[str, ...], str, str | None]] = {
    "tf-tutorial": (("73.0", "70.0", "67.0"), "tf-tutorial", None),
    "ln-tf-tutorial": (("73.3", "70.6", "67.0"), "ln-tf-tutorial", None),
    "frozen-bn-tf-tutorial": (("74.1", "71.2", "69.8"), "bn-tf-tutorial", "frozen"),
    "frozen-bn-light-vgg": (("79.5", "79.1", "77.4"), "bn-light-vgg", "frozen"),
}
_IMAGES = 50_000
_FEATURES_A_SECOND = 9000  # images through a head


def _cells(row: str) -> Callable[[float], Private]:
    _, model, batch_norm = _ROWS[row]

    def setting(epsilon: float) -> Private:
        return Private.scheduled(
            schedules.TABLE_6[epsilon],
            row,
            data="cifar10",
            model=model,
            epsilon=epsilon,
            batch_norm=batch_norm,
            pretrained=True,
        )

    return setting


def seconds(setting: Setting) -> float:
    """From runs on a small machine."""
    assert isinstance(setting, Private)
    return setting.epochs * _IMAGES / _FEATURES_A_SECOND


GRID = networks_against_noise(
    name="table-6",
    title="Table 6: CIFAR-10, the head of a pretrained network trained privately",
    about=(
        "Test accuracy in per cent; delta 1e-5, epsilon by the privacy loss distribution. Convolutions come from a "
        "file of the reader's own (--weights, with --rows for the one network that it fits), trained on public images: "
        "CIFAR-100 in the paper; papers.networks.cifar_tutorial describes how to make it. They are frozen and the "
        "linear layers are trained. Those of our first three rows come from images of a random process without labels: "
        "`python -m papers.abadi_2016.public_convolutions FILE`, with `--network ln-tf-tutorial` or bn-tf-tutorial for "
        "the second and third, makes their file in minutes, and they say much less about photographs than those of "
        "CIFAR-100. The paper's batch norm mixes the statistics of private and public images, so its epsilon does not "
        "hold; ours keeps the statistics that come with the file.",
        "CIFAR-10 may come from files of JPEG images. These are not lossless, so their accuracies are not comparable "
        "with printed ones.",
    ),
    unit="ε",
    columns=EPSILONS,
    rows=tuple(Row(row, printed, _cells(row)) for row, (printed, *_) in _ROWS.items()),
    default=tuple(_ROWS),
    seconds=seconds,
)
