"""How the private networks of tables 5, 6 and 7 are trained at each budget.

Nothing here was chosen by the test images of MNIST or CIFAR-10, nor by the test articles of AG News.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Schedule:
    """The settings that all rows of a table share at one budget, and their learning rates.

    ``lr`` is that of every row without one of its own in ``lr_of``. The rate falls to zero along half a cosine.
    """

    lot: int
    epochs: float
    lr: float
    lr_of: Mapping[str, float] = field(default_factory=dict)
    momentum: float = 0.9
    clip: float = 1.0
    averaging: float = 0.0  # of the weights, exponentially
    tanh: bool = False  # LeNet-5 alone: its activation, ReLU otherwise
    normalised_scores: bool = True  # LeNet-5 alone: whether a norm stands behind the last layer too


TABLE_5: Mapping[float, Schedule] = {
    7.0: Schedule(lot=2048, epochs=25, lr=2.0),
    3.0: Schedule(lot=2048, epochs=20, lr=1.5),
    1.0: Schedule(lot=2048, epochs=20, lr=1.0, lr_of={"lenet-5": 1.5, "ln-lenet-5": 2.0}),
    0.5: Schedule(lot=2048, epochs=12, lr=0.7, lr_of={"ln-lenet-5": 1.4}),
    0.1: Schedule(lot=512, epochs=4, lr=0.1, lr_of={"ln-lenet-5": 0.3}),
    0.05: Schedule(lot=512, epochs=3, lr=0.06, lr_of={"ln-lenet-5": 0.2}),
}
# The mixture needs one pass over lot and public images for each example of a lot. With lots as small as the paper's it
# can be run on a processor, and compared with the sound norm under the same noise.
LOTS_OF_32: Mapping[float, Schedule] = {
    1.0: Schedule(lot=32, epochs=1, lr=0.05),
    0.1: Schedule(lot=32, epochs=1, lr=0.05),
}
TABLE_6: Mapping[float, Schedule] = {
    8.0: Schedule(lot=4096, epochs=60, lr=0.5),
    4.0: Schedule(lot=4096, epochs=40, lr=0.5),
    2.0: Schedule(lot=4096, epochs=30, lr=0.5),
}
TABLE_7: Mapping[float, Schedule] = {
    7.0: Schedule(lot=1024, epochs=20, lr=2.0),
    3.0: Schedule(lot=1024, epochs=20, lr=2.0),
    1.0: Schedule(lot=1024, epochs=20, lr=1.0),
    0.5: Schedule(lot=1024, epochs=15, lr=1.0),
    0.1: Schedule(lot=2048, epochs=10, lr=0.5),
}
