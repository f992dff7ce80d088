"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""

from noisette.clipping import engines as engines
from noisette.clipping.adaptive import AdaptiveClip as AdaptiveClip
from noisette.clipping.clipping_rules import AutomaticClipping as AutomaticClipping
from noisette.clipping.clipping_rules import ClippingRule as ClippingRule
from noisette.clipping.clipping_rules import CustomClipping as CustomClipping
from noisette.clipping.clipping_rules import FlatClipping as FlatClipping
from noisette.clipping.clipping_rules import GroupwiseClipping as GroupwiseClipping
from noisette.clipping.clipping_rules import PerLayerClipping as PerLayerClipping
from noisette.clipping.per_example import PerExampleClip as PerExampleClip
