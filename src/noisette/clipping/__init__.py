"""Per-example clipping: scale each example's gradient to a norm of at most C, then add up."""

from noisette.clipping import engines as engines
from noisette.clipping.adaptive import AdaptiveClip as AdaptiveClip
from noisette.clipping.automatic import AutomaticClipping as AutomaticClipping
from noisette.clipping.custom import CustomClipping as CustomClipping
from noisette.clipping.flat import FlatClipping as FlatClipping
from noisette.clipping.groupwise import GroupwiseClipping as GroupwiseClipping
from noisette.clipping.norms import ClippingRule as ClippingRule
from noisette.clipping.per_example import PerExampleClip as PerExampleClip
from noisette.clipping.per_layer import PerLayerClipping as PerLayerClipping
