"""LeNet-5 with each kind of norm under private training, and what may be claimed of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from noisette.report.svg import BLUE, GREEN, INK, ORANGE
from noisette.reproduce.davody_2020 import schedules
from noisette.reproduce.davody_2020.networks import lenet
from noisette.reproduce.davody_2020.private import Private
from noisette.reproduce.davody_2020.runs import Setting
from noisette.reproduce.davody_2020.setting import NoisyWeights

PUBLIC = "kmnist"
_IMAGES = 60_000


@dataclass(frozen=True)
class Norm:
    """A kind of norm: its network, and what takes the place of each batch norm in it."""

    name: str
    label: str
    network: str
    batch_norm: str | None
    needs_public: bool
    colour: str
    dashes: str = "-"

    def setting(self, epsilon: float) -> Private:
        """How it is trained with the noise of this budget: all norms have the same lots, epochs and noise."""
        schedule = schedules.TABLE_5[epsilon]
        return Private(
            data="mnist",
            model=lenet(self.network, tanh=schedules.TANH, normalised_scores=schedules.NORMALISED_SCORES),
            batch_norm=self.batch_norm,
            epsilon=epsilon,
            lot=schedule.lot,
            epochs=schedule.epochs,
            lr=schedule.lr_of.get(self.name, schedule.lr),
            momentum=schedule.momentum,
            clip=schedule.clip,
            averaging=schedule.averaging,
            public=PUBLIC if self.needs_public else None,
        )


PLAIN = Norm("lenet-5", "no norm", "plain", None, False, INK)
LAYER = Norm("ln-lenet-5", "layer norm", "ln", None, False, BLUE)
PUBLIC_BATCH = Norm("public-bn-lenet-5", "batch norm, public statistics", "bn", "public", True, GREEN)
PER_EXAMPLE = Norm("per-example-bn-lenet-5", "batch norm, one example and public", "bn", "per-example", True, "#b8609a")
FROZEN = Norm("frozen-bn-lenet-5", "batch norm, statistics of the start", "bn", "frozen", True, "#8a6d00")
MIXTURE = Norm("mixture-bn-lenet-5", "batch norm as printed", "bn", "mixture", True, ORANGE, "--")
NORMS: Sequence[Norm] = (PLAIN, LAYER, PUBLIC_BATCH, PER_EXAMPLE, FROZEN, MIXTURE)

_SECONDS_AN_EXAMPLE = 2.2e-4  # of a private step, from runs on a small machine
_SECONDS_A_PAIR = 2.2e-4  # for each private example, and each that is normalised together with it


def seconds(setting: Setting) -> float:
    """About how long a run of the table takes on one processor core."""
    if isinstance(setting, NoisyWeights):
        from noisette.reproduce.davody_2020 import table_2

        return table_2.seconds(setting)
    examples = setting.epochs * _IMAGES
    if not setting.claimed:
        return _SECONDS_A_PAIR * examples * (setting.lot + setting.public_examples)
    shared = 1 + (setting.public_examples / setting.lot if setting.public else 0)
    return _SECONDS_AN_EXAMPLE * shared * examples
