"""LeNet-5 with each kind of norm under private training, and whether it has a guarantee."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from noisette.training.report.figures import BLUE, GREEN, INK, ORANGE
from papers.davody_2020 import schedules
from papers.davody_2020.networks import lenet
from papers.davody_2020.private import Private
from papers.davody_2020.runs import Setting
from papers.davody_2020.schedules import Schedule
from papers.davody_2020.setting import NoisyWeights

PUBLIC = "kmnist"
_IMAGES = 60_000


@dataclass(frozen=True)
class Norm:
    """A kind of norm: its network, what replaces each batch norm in it, and by how many pixels training images move."""

    name: str
    label: str
    network: str
    batch_norm: str | None
    needs_public: bool
    colour: str
    schedule: Mapping[float, Schedule] = field(default_factory=lambda: schedules.TABLE_5)
    shift: int = 0

    @property
    def guaranteed(self) -> bool:
        """Whether a run with it keeps its budget."""
        return self.batch_norm != "mixture"

    def setting(self, epsilon: float) -> Private | None:
        """The training with the noise of this budget, if there is one; all norms of a schedule have the same noise."""
        schedule = self.schedule.get(epsilon)
        if schedule is None:
            return None
        return Private.scheduled(
            schedule,
            self.name,
            data="mnist",
            model=lenet(self.network, tanh=schedule.tanh, normalised_scores=schedule.normalised_scores),
            epsilon=epsilon,
            batch_norm=self.batch_norm,
            shift=self.shift,
            public=PUBLIC if self.needs_public else None,
        )


PLAIN = Norm("lenet-5", "no norm", "plain", None, False, INK)
LAYER = Norm("ln-lenet-5", "layer norm", "ln", None, False, BLUE)
PUBLIC_BATCH = Norm("public-bn-lenet-5", "batch norm, public statistics", "bn", "public", True, GREEN)
MOVED = replace(
    PUBLIC_BATCH, name="moved-public-bn-lenet-5", label="the same, images moved by a pixel", colour="#6a4fb3", shift=1
)
PER_EXAMPLE = Norm("per-example-bn-lenet-5", "batch norm, one example and public", "bn", "per-example", True, "#b8609a")
FROZEN = Norm("frozen-bn-lenet-5", "batch norm, statistics of the start", "bn", "frozen", True, "#8a6d00")
MIXTURE = Norm("mixture-bn-lenet-5", "batch norm as printed", "bn", "mixture", True, ORANGE)
PUBLIC_BATCH_32, MIXTURE_32 = (
    replace(norm, name=f"{norm.name}-lots-of-32", label=f"{norm.label}, lots of 32", schedule=schedules.LOTS_OF_32)
    for norm in (PUBLIC_BATCH, MIXTURE)
)
NORMS: Sequence[Norm] = (PLAIN, LAYER, PUBLIC_BATCH, MOVED, PER_EXAMPLE, FROZEN, MIXTURE, PUBLIC_BATCH_32, MIXTURE_32)

# From runs on a small machine: for a private example; for one and another that is normalised together with it; and for
# the test images, each of which goes through the mixture with all public ones.
_SECONDS_AN_EXAMPLE, _SECONDS_A_PAIR, _SECONDS_TO_TEST = 2.6e-4, 6e-5, 240


def seconds(setting: Setting) -> float:
    """About how long a run of the table takes on one processor core."""
    if isinstance(setting, NoisyWeights):
        from papers.davody_2020 import table_2

        return table_2.seconds(setting)
    examples = setting.epochs * _IMAGES
    if not setting.guaranteed:
        return _SECONDS_A_PAIR * examples * (setting.lot + setting.public_examples) + _SECONDS_TO_TEST
    shared = 1 + (setting.public_examples / setting.lot if setting.public else 0)
    return _SECONDS_AN_EXAMPLE * shared * examples
