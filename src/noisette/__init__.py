"""Train PyTorch models with differential privacy: fast, exact, and with a claim that can be checked."""

from noisette.accounting import Ledger as Ledger
from noisette.accounting import MomentsAccountant as MomentsAccountant
from noisette.accounting import PldAccountant as PldAccountant
from noisette.accounting import RdpAccountant as RdpAccountant
from noisette.accounting import noise_multiplier_for as noise_multiplier_for
from noisette.bounding import BookKeeping as BookKeeping
from noisette.bounding import BoundedSum as BoundedSum
from noisette.bounding import GradientBound as GradientBound
from noisette.bounding import Loop as Loop
from noisette.bounding import PerExampleClip as PerExampleClip
from noisette.bounding import Reweight as Reweight
from noisette.errors import MissingRule as MissingRule
from noisette.errors import PrivacyRefusal as PrivacyRefusal
from noisette.explain import explain as explain
from noisette.privatize import PrivateRun as PrivateRun
from noisette.privatize import privatize as privatize
from noisette.release import GaussianRelease as GaussianRelease

__all__ = [
    "BookKeeping",
    "BoundedSum",
    "GaussianRelease",
    "GradientBound",
    "Ledger",
    "Loop",
    "MissingRule",
    "MomentsAccountant",
    "PerExampleClip",
    "PldAccountant",
    "PrivacyRefusal",
    "PrivateRun",
    "RdpAccountant",
    "Reweight",
    "explain",
    "noise_multiplier_for",
    "privatize",
]
__version__ = "0.1.0"
