"""Modules of networks that stretch no vector, each with bounds of its own, and losses for them."""

from noisette.nn.lipschitz.activations import Abs as Abs
from noisette.nn.lipschitz.activations import FullSort as FullSort
from noisette.nn.lipschitz.activations import GroupSort2 as GroupSort2
from noisette.nn.lipschitz.centering import LayerCentering as LayerCentering
from noisette.nn.lipschitz.inputs import BoundedInput as BoundedInput
from noisette.nn.lipschitz.inputs import NormCap as NormCap
from noisette.nn.lipschitz.inputs import SphereInput as SphereInput
from noisette.nn.lipschitz.joining import LipschitzConcat as LipschitzConcat
from noisette.nn.lipschitz.joining import LipschitzResidual as LipschitzResidual
from noisette.nn.lipschitz.joining import Scale as Scale
from noisette.nn.lipschitz.linear import SpectralLinear as SpectralLinear
from noisette.nn.lipschitz.losses import KCosine as KCosine
from noisette.nn.lipschitz.losses import TauBCE as TauBCE
from noisette.nn.lipschitz.losses import TauCrossEntropy as TauCrossEntropy
from noisette.nn.lipschitz.mixer import MixerBlock as MixerBlock
from noisette.nn.lipschitz.mixer import TokenMix as TokenMix
from noisette.nn.lipschitz.pooling import GlobalL2NormPool2d as GlobalL2NormPool2d
from noisette.nn.lipschitz.pooling import L2NormPool2d as L2NormPool2d
from noisette.nn.lipschitz.pooling import ScaledAvgPool2d as ScaledAvgPool2d
