"""Layers and functions for the user's own models."""

from noisette.nn.append_one import AppendOne as AppendOne
from noisette.nn.augmentation import MirrorAndShift as MirrorAndShift
from noisette.nn.augmentation import fixed_views as fixed_views
from noisette.nn.channel_norm import FrozenBatchNorm as FrozenBatchNorm
from noisette.nn.channel_norm import PerExampleBatchNorm as PerExampleBatchNorm
from noisette.nn.channel_norm import PublicBatchNorm as PublicBatchNorm
from noisette.nn.conversion import convert_batch_norm as convert_batch_norm
from noisette.nn.conversion import to_batch_norm as to_batch_norm
from noisette.nn.conversion import use_public_batch as use_public_batch
from noisette.nn.dct import DctCut as DctCut
from noisette.nn.joint_batch import ExactPerExampleBatchNorm as ExactPerExampleBatchNorm
from noisette.nn.patches import PatchFeatures as PatchFeatures
from noisette.nn.scattering import Scattering2d as Scattering2d
from noisette.nn.standardise import Standardise as Standardise
from noisette.nn.standardised_weights import weight_standardised as weight_standardised
from noisette.nn.views import MirrorAverage as MirrorAverage
from noisette.nn.views import mean_over_stored_views as mean_over_stored_views
from noisette.nn.views import mean_over_views as mean_over_views
from noisette.nn.weight_noise import WeightNoise as WeightNoise
from noisette.nn.whitening import Whitening as Whitening
from noisette.nn.word_counts import WordCounts as WordCounts
from noisette.nn.word_vectors import WordVectors as WordVectors
