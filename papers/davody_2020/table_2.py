"""Table 2: accuracy on MNIST under noise on the weights."""

from __future__ import annotations

from functools import partial

from papers.davody_2020.grid import Row, networks_against_noise
from papers.davody_2020.runs import Setting
from papers.davody_2020.setting import NoisyWeights

SIGMAS = (0.0, 0.01, 0.1, 1.0, 2.0)
_PRINTED = {
    "lenet-300-100": ("98.20 ± 0.07", "97.70 ± 0.30", "96.98 ± 0.12", "no convergence", "no convergence"),
    "bn-lenet-300-100": ("98.20 ± 0.10", "98.10 ± 0.10", "98.07 ± 0.11", "98.07 ± 0.12", "98.13 ± 0.08"),
    "ln-lenet-300-100": ("98.04 ± 0.16", "98.00 ± 0.10", "98.08 ± 0.14", "98.04 ± 0.09", "98.03 ± 0.17"),
    "lenet-5": ("99.20 ± 0.02", "98.94 ± 0.07", "98.40 ± 0.03", "no convergence", "no convergence"),
    "bn-lenet-5": ("99.20 ± 0.08", "99.21 ± 0.05", "99.18 ± 0.06", "99.24 ± 0.04", "99.25 ± 0.07"),
    "ln-lenet-5": ("99.16 ± 0.08", "99.14 ± 0.06", "99.13 ± 0.07", "99.21 ± 0.05", "99.19 ± 0.07"),
}
MODELS = tuple(_PRINTED)
NORM_RATE = 0.003


def setting(model: str, sigma: float) -> NoisyWeights:
    """How a cell is trained."""
    return NoisyWeights(
        data="mnist",
        model=model,
        sigma=sigma,
        epochs=20 if "300-100" in model else 12,
        batch_size=128,
        lr=rate(sigma, normalised=model.startswith(("bn-", "ln-"))),
        lr_norms=NORM_RATE,
    )


def rate(sigma: float, *, normalised: bool) -> float:
    """Adam's learning rate for weights whose outputs are normalised, or are not.

    The former may be multiplied by any number, so noise sigma with rate r is noise 1 with rate r / sigma.
    """
    return max(0.003, sigma / 2) if normalised else max(0.002, sigma / 10)


def seconds(setting: Setting) -> float:
    """From runs on a small machine."""
    assert isinstance(setting, NoisyWeights)
    an_epoch = 2.0 if "300-100" in setting.model else 8.5
    plain = not setting.model.startswith(("bn-", "ln-"))
    given_up = plain and setting.sigma >= 1 and setting.patience
    return an_epoch * (given_up or setting.epochs)


GRID = networks_against_noise(
    name="table-2",
    title="Table 2: MNIST under noise on the weights",
    about=(
        "Test accuracy in per cent, mean and standard error over seeds. In each forward pass, in training and in test, "
        "every weight and bias of a linear or convolutional layer has fresh Gaussian noise of deviation sigma; the "
        "norms' own scales and shifts have none. Batch norm takes its statistics from the batch at hand, in test too: "
        "1000 images, and each image is tested under five draws. This is not private training: the noise is on the "
        "weights, not on gradients.",
        "Ours: Adam, batches of 128, 12 epochs (LeNet-300-100: 20), learning rate falling along half a cosine. What "
        "stands before a norm may be multiplied by any number, so noise sigma with rate r is noise 1 with rate r / "
        "sigma: the rate of normalised weights is sigma / 2, at least 0.003, and that of the norms' own parameters "
        "0.003. Networks without norms tolerate less: theirs is sigma / 10, at least 0.002. A network that is no "
        "better than chance after four epochs is given up. 10,000 of the 60,000 training images are held out, and the "
        "rates were looked at there. The paper names Adam, and nothing else.",
    ),
    unit="σ",
    columns=SIGMAS,
    rows=tuple(Row(model, printed, partial(setting, model)) for model, printed in _PRINTED.items()),
    default=MODELS,
    seconds=seconds,
)
