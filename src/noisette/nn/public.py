"""The public names of this folder; importing them imports torch."""

from noisette.nn.batch_norm import ExactPerExampleBatchNorm as ExactPerExampleBatchNorm
from noisette.nn.batch_norm import FrozenBatchNorm as FrozenBatchNorm
from noisette.nn.batch_norm import PerExampleBatchNorm as PerExampleBatchNorm
from noisette.nn.batch_norm import PublicBatchNorm as PublicBatchNorm
from noisette.nn.conversion import convert_batch_norm as convert_batch_norm
from noisette.nn.conversion import to_batch_norm as to_batch_norm
from noisette.nn.conversion import use_public_batch as use_public_batch
from noisette.nn.features import AppendOne as AppendOne
from noisette.nn.features import DctCut as DctCut
from noisette.nn.features import PatchFeatures as PatchFeatures
from noisette.nn.features import Scattering2d as Scattering2d
from noisette.nn.features import Standardise as Standardise
from noisette.nn.features import Whitening as Whitening
from noisette.nn.features import WordCounts as WordCounts
from noisette.nn.features import WordVectors as WordVectors
from noisette.nn.features import weight_standardised as weight_standardised
from noisette.nn.views import MirrorAndShift as MirrorAndShift
from noisette.nn.views import MirrorAverage as MirrorAverage
from noisette.nn.views import fixed_views as fixed_views
from noisette.nn.views import mean_over_stored_views as mean_over_stored_views
from noisette.nn.views import mean_over_views as mean_over_views
from noisette.nn.weight_noise import WeightNoise as WeightNoise
