"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""

from noisette.clipping.adaptive import AdaptiveClip as AdaptiveClip
from noisette.clipping.clipping_rules import Automatic as Automatic
from noisette.clipping.clipping_rules import ClippingRule as ClippingRule
from noisette.clipping.clipping_rules import Flat as Flat
from noisette.clipping.clipping_rules import OwnFactor as OwnFactor
from noisette.clipping.clipping_rules import PerGroup as PerGroup
from noisette.clipping.clipping_rules import PerLayer as PerLayer
from noisette.clipping.per_example import PerExampleClip as PerExampleClip
