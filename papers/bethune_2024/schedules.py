"""The training settings of each network at each budget.

No setting was chosen on a data set that the pages show. Settings for MNIST and Fashion-MNIST come from EMNIST letters A
to J, and are those of CIFAR-10 too; those for digits come from the same letters scaled down to 8 x 8 pixels. Those for
tables come from Adult (unchanged, with fewer of its rarer class, with its numbers scaled to their range, and for small
tables six of its numbers, standardised, of 1,187 rows), from ADBench's mammography, from random points, and for many
rows from these with less noise. Lots had the same share of the examples there, and noise the same size in relation to
the mean gradient. The mixer was not tuned. Two exceptions: the cosine decay for frequencies was introduced after a
constant rate had failed on Fashion-MNIST; its initial rate was then chosen on letters alone. The breadth of the cosines
for small tables was chosen again after it had failed on yeast, whose columns are standardised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from papers.bethune_2024.networks import named
from papers.bethune_2024.setting import Setting


@dataclass(frozen=True)
class Schedule:
    """Steps and learning rate of a network at a budget."""

    steps: int
    lr: float


@dataclass(frozen=True)
class Network:
    """A network and its training settings: those of all budgets, and the schedule ``at`` each budget.

    ``share`` is the share of the examples in a lot; without ``tau`` whole gradients are clipped, see
    :class:`papers.bethune_2024.setting.Setting`.
    """

    model: str
    label: str
    tau: float | None
    at: Mapping[float, Schedule]
    averaging: float = 0.95
    clip: float = 0.1
    share: float = 8000 / 60_000
    public: str | None = None
    cosine: bool = False

    def setting(self, data: str, size: int, delta: float, epsilon: float) -> Setting | None:
        """Return its setting on a set of ``size`` examples; ``None`` if there is no schedule for this budget."""
        if epsilon not in self.at:
            return None
        schedule = self.at[epsilon]
        return Setting(
            data=data,
            size=size,
            model=self.model,
            epsilon=epsilon,
            delta=delta,
            lot=round(self.share * size),
            epochs=schedule.steps * self.share,
            lr=schedule.lr,
            tau=self.tau,
            clip=self.clip,
            averaging=self.averaging,
            public=self.public,
            cosine=self.cosine,
        )


PIXELS = Network(
    "lipschitz-dense",
    "pixels, two dense layers",
    tau=60.0,
    at={8.0: Schedule(400, 30.0), 3.0: Schedule(150, 20.0), 1.0: Schedule(100, 15.0), 0.5: Schedule(40, 15.0)},
)
FREQUENCIES = Network(
    "dct-lipschitz-dense",
    "low frequencies, two dense layers",
    tau=60.0,
    at={8.0: Schedule(300, 48.0), 3.0: Schedule(200, 32.0), 1.0: Schedule(100, 24.0), 0.5: Schedule(60, 24.0)},
    cosine=True,
)
COSINES = Network(
    named("frequency_cosines"),
    "cosines, one linear layer",
    tau=1000.0,
    at={8.0: Schedule(300, 0.4), 3.0: Schedule(300, 0.3), 1.0: Schedule(200, 0.15)},
    averaging=0.9,
)
# With one layer, a large tau keeps its weights inside of their ball, so the constraint is not active.
SCATTERING = Network(
    "scattering-lipschitz-linear",
    "scattering, one linear layer",
    tau=1000.0,
    at={8.0: Schedule(400, 1.0), 3.0: Schedule(200, 1.0), 1.0: Schedule(100, 1.0), 0.5: Schedule(100, 0.3)},
    averaging=0.9,
    public="kmnist",
)
COLOUR_SCATTERING = replace(
    SCATTERING, public="shaded-leaves", at={epsilon: SCATTERING.at[epsilon] for epsilon in (8.0, 3.0, 1.0)}
)
DIGITS = Network("lipschitz-linear", "pixels, one linear layer", tau=1000.0, at={2.48: Schedule(60, 0.05)}, share=0.5)
MIXER = Network(
    "lipschitz-mixer",
    "mixer",
    tau=60.0,
    at={20.0: Schedule(400, 10.0), 8.0: Schedule(300, 10.0), 3.0: Schedule(200, 10.0), 1.0: Schedule(100, 7.0)},
)
NARROW_MIXER = replace(
    MIXER, model=named("narrow_mixer"), at={8.0: Schedule(150, 10.0), 3.0: Schedule(100, 10.0), 1.0: Schedule(50, 7.0)}
)

_FEW, _MANY, _WIDE = 5_000, 100_000, 25  # rows, rows and columns
_UNCLIPPED = 1.42  # above the norm of any gradient at two scores


def clipless_rows(size: int, columns: int) -> Network:
    """Return the network without clipping for a table of ``size`` rows, at epsilon 1.

    Noise on a hidden layer grows with its inputs, so small and wide tables have one layer on fixed features.
    """
    if size < _FEW:
        return Network(named("cosines"), "one layer on cosines", tau=1000.0, at={1.0: Schedule(50, 0.06)}, share=0.5)
    if columns >= _WIDE:
        clip, lr = (0.2, 0.06) if size < _MANY else (_UNCLIPPED, 0.017)
        return Network(named("roots"), "one layer on roots", tau=1000.0, at={1.0: Schedule(200, lr)}, clip=clip)
    if size < _MANY:
        return Network("lipschitz-rows", "two layers", tau=60.0, at={1.0: Schedule(100, 10.0)})
    return Network("lipschitz-rows", "two layers", tau=100.0, at={1.0: Schedule(200, 10.0)})


def clipped_rows(size: int, columns: int) -> Network:
    """Return the same network with unconstrained weights, whose whole gradients are clipped."""
    if size < _FEW:
        at = {1.0: Schedule(50, 60.0)}
        return Network(named("free_cosines"), "one layer on cosines", tau=None, at=at, share=0.5)
    if columns >= _WIDE:
        clip, lr = (0.2, 60.0) if size < _MANY else (_UNCLIPPED, 17.0)
        return Network(named("free_roots"), "one layer on roots", tau=None, at={1.0: Schedule(200, lr)}, clip=clip)
    steps = 100 if size < _MANY else 200
    return Network(named("free_narrow"), "two layers", tau=None, clip=1.0, at={1.0: Schedule(steps, 1.0)})


# Seconds of one example in one step, and seconds before the first step, from runs on a small machine.
_SECONDS_AN_EXAMPLE = {
    "lipschitz-dense": 1e-5,
    "dct-lipschitz-dense": 4e-6,
    named("frequency_cosines"): 1e-5,
    "scattering-lipschitz-linear": 5e-6,
    "lipschitz-mixer": 3e-4,
    named("narrow_mixer"): 1.5e-4,
    named("roots"): 1.5e-6,
    named("free_roots"): 1.5e-6,
}
_ROW = 4e-6
_SECONDS_TO_BEGIN = {"scattering-lipschitz-linear": 20.0, "lipschitz-mixer": 30.0}


def seconds(setting: Setting) -> float:
    """Approximate time of a run on one processor core."""
    an_example = _SECONDS_AN_EXAMPLE.get(setting.model, _ROW)
    return _SECONDS_TO_BEGIN.get(setting.model, 5.0) + an_example * setting.epochs * setting.size
