"""Modules that stretch nothing, and losses of known slope: networks whose gradients have a bound without clipping."""

from noisette.nn.lipschitz.distance_losses import MAE as MAE
from noisette.nn.lipschitz.distance_losses import MSE as MSE
from noisette.nn.lipschitz.distance_losses import HuberLoss as HuberLoss
from noisette.nn.lipschitz.losses import KCosine as KCosine
from noisette.nn.lipschitz.losses import TauBCE as TauBCE
from noisette.nn.lipschitz.losses import TauCrossEntropy as TauCrossEntropy
from noisette.nn.lipschitz.margin_losses import HKR as HKR
from noisette.nn.lipschitz.margin_losses import KR as KR
from noisette.nn.lipschitz.margin_losses import MulticlassHinge as MulticlassHinge
from noisette.nn.lipschitz.margin_losses import MultiMargin as MultiMargin
