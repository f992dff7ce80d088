"""Table 4: accuracy on AG News under noise on the weights."""

from __future__ import annotations

from functools import partial

from papers.davody_2020.grid import Row, networks_against_noise
from papers.davody_2020.runs import Setting
from papers.davody_2020.setting import NoisyWeights
from papers.davody_2020.table_2 import NORM_RATE, SIGMAS, rate

_PRINTED = {
    "bilstm-dl": ("89.34", "89.57", "89.01", "66.32", "24.76"),
    "ln-bilstm-dl": ("89.34", "88.87", "88.62", "85.74", "82.41"),
}
SUBSET = (
    "AG News at hand may be a part of its articles (18,349 of 120,000 for training), and the word vectors a part of "
    "GloVe; numbers from them are not comparable with printed ones."
)


def setting(model: str, sigma: float) -> NoisyWeights:
    """How a cell is trained."""
    return NoisyWeights(
        data="ag-news",
        model=model,
        sigma=sigma,
        epochs=25,
        batch_size=64,
        lr=rate(sigma, normalised=model.startswith("ln-")),
        lr_norms=NORM_RATE,
        patience=None,
    )


def seconds(setting: Setting) -> float:
    """From runs on a small machine."""
    assert isinstance(setting, NoisyWeights)
    return (5.0 if setting.model.startswith("ln-") else 2.0) * setting.epochs


GRID = networks_against_noise(
    name="table-4",
    title="Table 4: AG News under noise on the weights",
    about=(
        "As table 2. One bidirectional LSTM of 32 units over the first words of an article, whose GloVe vectors stay "
        "as they are. The noise of the LSTM is drawn once for each pass over a sequence. Ours: the learning rates of "
        "table 2, batches of 64, 25 epochs; the rates were tried on held-out articles.",
        SUBSET,
    ),
    unit="σ",
    columns=SIGMAS,
    rows=tuple(Row(model, printed, partial(setting, model)) for model, printed in _PRINTED.items()),
    default=tuple(_PRINTED),
    seconds=seconds,
)
