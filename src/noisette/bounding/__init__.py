"""Ways to bound what one example can do, as peers behind one interface."""

from noisette.bounding.adaptive import AdaptiveClip as AdaptiveClip
from noisette.bounding.allocation import Allocation as Allocation
from noisette.bounding.allocation import GlobalAllocation as GlobalAllocation
from noisette.bounding.allocation import OptimalAllocation as OptimalAllocation
from noisette.bounding.allocation import PerLayerAllocation as PerLayerAllocation
from noisette.bounding.base import BoundedSum as BoundedSum
from noisette.bounding.base import GradientBound as GradientBound
from noisette.bounding.clip import PerExampleClip as PerExampleClip
from noisette.bounding.clipped_sum import Engine as Engine
from noisette.bounding.clipping_rules import Automatic as Automatic
from noisette.bounding.clipping_rules import ClippingRule as ClippingRule
from noisette.bounding.clipping_rules import Flat as Flat
from noisette.bounding.clipping_rules import OwnFactor as OwnFactor
from noisette.bounding.clipping_rules import PerGroup as PerGroup
from noisette.bounding.clipping_rules import PerLayer as PerLayer
from noisette.bounding.engines import BookKeeping as BookKeeping
from noisette.bounding.engines import Reweight as Reweight
from noisette.bounding.lipschitz_bound import LipschitzBound as LipschitzBound
from noisette.bounding.one_by_one import Loop as Loop
from noisette.bounding.one_by_one import MultiLoss as MultiLoss
from noisette.bounding.vmap import Vmap as Vmap
