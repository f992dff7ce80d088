"""Ways to bound what one example can do, as peers behind one interface."""

from noisette.bounding.base import BoundedSum as BoundedSum
from noisette.bounding.base import GradientBound as GradientBound
from noisette.bounding.clip import PerExampleClip as PerExampleClip
from noisette.bounding.engines import BookKeeping as BookKeeping
from noisette.bounding.engines import Engine as Engine
from noisette.bounding.engines import Loop as Loop
from noisette.bounding.engines import Reweight as Reweight
