"""Table 7: accuracy on AG News under private training."""

from __future__ import annotations

import math
from collections.abc import Callable

from papers.davody_2020 import schedules, table_4
from papers.davody_2020.grid import Row, networks_against_noise
from papers.davody_2020.private import Private
from papers.davody_2020.runs import Setting
from papers.davody_2020.setting import NoisyWeights

EPSILONS = tuple(schedules.TABLE_7)
_ARTICLES = 18_349
_PRINTED = {
    "bilstm-dl": ("88.47", "83.86", "80.00", "81.14", "77.88", "37.49"),
    "ln-bilstm-dl": ("88.18", "84.34", "82.51", "82.03", "79.16", "50.09"),
}


def _cells(model: str) -> Callable[[float], Setting]:
    def setting(epsilon: float) -> Setting:
        if epsilon == math.inf:
            return table_4.setting(model, 0.0)
        return Private.scheduled(schedules.TABLE_7[epsilon], model, data="ag-news", model=model, epsilon=epsilon)

    return setting


def seconds(setting: Setting) -> float:
    """From runs on a small machine."""
    if isinstance(setting, NoisyWeights):
        return table_4.seconds(setting)
    return setting.epochs * _ARTICLES * (4e-4 if setting.model.startswith("ln-") else 2e-4)


GRID = networks_against_noise(
    name="table-7",
    title="Table 7: AG News with private training",
    about=(
        "Test accuracy in per cent; delta 1e-5, one record is one article, epsilon by the privacy loss distribution. "
        "Words are numbered by GloVe's own list, never by the articles. The paper's numbers are those of single runs.",
        table_4.SUBSET,
    ),
    unit="ε",
    columns=(math.inf, *EPSILONS),
    rows=tuple(Row(model, printed, _cells(model)) for model, printed in _PRINTED.items()),
    default=tuple(_PRINTED),
    seconds=seconds,
)
