"""Train PyTorch models with differential privacy: fast, exact, and with a claim that can be checked."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from noisette.accounting import FixedSizeGaussian as FixedSizeGaussian
    from noisette.accounting import Gaussian as Gaussian
    from noisette.accounting import GdpExact as GdpExact
    from noisette.accounting import Ledger as Ledger
    from noisette.accounting import MomentsAccountant as MomentsAccountant
    from noisette.accounting import NaiveComposition as NaiveComposition
    from noisette.accounting import PldAccountant as PldAccountant
    from noisette.accounting import PoissonGaussian as PoissonGaussian
    from noisette.accounting import RdpAccountant as RdpAccountant
    from noisette.accounting import RepeatedRuns as RepeatedRuns
    from noisette.accounting import SeenByGroup as SeenByGroup
    from noisette.accounting import StrongComposition as StrongComposition
    from noisette.accounting import delta_for as delta_for
    from noisette.accounting import epsilon_for as epsilon_for
    from noisette.accounting import noise_multiplier_for as noise_multiplier_for
    from noisette.accounting import sampling_rate_for as sampling_rate_for
    from noisette.accounting import steps_for as steps_for
    from noisette.bounding import AdaptiveClip as AdaptiveClip
    from noisette.bounding import Automatic as Automatic
    from noisette.bounding import BookKeeping as BookKeeping
    from noisette.bounding import BoundedSum as BoundedSum
    from noisette.bounding import Flat as Flat
    from noisette.bounding import GlobalAllocation as GlobalAllocation
    from noisette.bounding import GradientBound as GradientBound
    from noisette.bounding import LipschitzBound as LipschitzBound
    from noisette.bounding import Loop as Loop
    from noisette.bounding import MultiLoss as MultiLoss
    from noisette.bounding import OptimalAllocation as OptimalAllocation
    from noisette.bounding import OwnFactor as OwnFactor
    from noisette.bounding import PerExampleClip as PerExampleClip
    from noisette.bounding import PerGroup as PerGroup
    from noisette.bounding import PerLayer as PerLayer
    from noisette.bounding import PerLayerAllocation as PerLayerAllocation
    from noisette.bounding import Reweight as Reweight
    from noisette.bounding import Vmap as Vmap
    from noisette.errors import MissingRule as MissingRule
    from noisette.errors import PrivacyRefusal as PrivacyRefusal
    from noisette.errors import Unpriceable as Unpriceable
    from noisette.explanation import explain as explain
    from noisette.principal_components import PrivatePCA as PrivatePCA
    from noisette.principal_components import private_pca as private_pca
    from noisette.private_run import PrivateRun as PrivateRun
    from noisette.private_run import privatize as privatize
    from noisette.release import GaussianRelease as GaussianRelease
    from noisette.robustness import certified_accuracy as certified_accuracy
    from noisette.robustness import certify as certify
    from noisette.rules import rule as rule

_ROOMS = {
    "AdaptiveClip": "bounding",
    "Automatic": "bounding",
    "BookKeeping": "bounding",
    "BoundedSum": "bounding",
    "FixedSizeGaussian": "accounting",
    "Flat": "bounding",
    "Gaussian": "accounting",
    "GaussianRelease": "release",
    "GdpExact": "accounting",
    "GlobalAllocation": "bounding",
    "GradientBound": "bounding",
    "Ledger": "accounting",
    "LipschitzBound": "bounding",
    "Loop": "bounding",
    "MissingRule": "errors",
    "MomentsAccountant": "accounting",
    "MultiLoss": "bounding",
    "NaiveComposition": "accounting",
    "OptimalAllocation": "bounding",
    "OwnFactor": "bounding",
    "PerExampleClip": "bounding",
    "PerGroup": "bounding",
    "PerLayer": "bounding",
    "PerLayerAllocation": "bounding",
    "PldAccountant": "accounting",
    "PoissonGaussian": "accounting",
    "PrivacyRefusal": "errors",
    "PrivatePCA": "principal_components",
    "PrivateRun": "private_run",
    "RdpAccountant": "accounting",
    "RepeatedRuns": "accounting",
    "Reweight": "bounding",
    "SeenByGroup": "accounting",
    "StrongComposition": "accounting",
    "Unpriceable": "errors",
    "Vmap": "bounding",
    "certified_accuracy": "robustness",
    "certify": "robustness",
    "delta_for": "accounting",
    "epsilon_for": "accounting",
    "explain": "explanation",
    "noise_multiplier_for": "accounting",
    "private_pca": "principal_components",
    "privatize": "private_run",
    "rule": "rules",
    "sampling_rate_for": "accounting",
    "steps_for": "accounting",
}
__all__ = list(_ROOMS)  # pyright: ignore[reportUnsupportedDunderAll]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # Rooms open on first use, so that the accounting commands never wait for torch.
    if name not in _ROOMS:
        raise AttributeError(f"module 'noisette' has no attribute {name!r}")
    value = getattr(import_module(f"noisette.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
