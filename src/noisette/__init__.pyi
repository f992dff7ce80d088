"""The public names, for type checkers: the same list as in `__init__.py`."""

from noisette import audit as audit
from noisette import data as data
from noisette import nn as nn
from noisette.accounting import *  # noqa: F403
from noisette.capture.captured import CaptureWarning as CaptureWarning
from noisette.clipping import engines as engines
from noisette.clipping.engines import OneByOneWarning as OneByOneWarning
from noisette.clipping.rules import *  # noqa: F403
from noisette.core.loss import Loss as Loss
from noisette.core.release import BoundedSum as BoundedSum
from noisette.core.release import GaussianRelease as GaussianRelease
from noisette.core.release import GradientBound as GradientBound
from noisette.core.steps import close_run as close_run
from noisette.errors import MissingRuleError as MissingRuleError
from noisette.errors import PrivacyError as PrivacyError
from noisette.errors import UnsupportedEventError as UnsupportedEventError
from noisette.integrations.scikit_learn import PrivateClassifier as PrivateClassifier
from noisette.integrations.scikit_learn import PrivateRegressor as PrivateRegressor
from noisette.lipschitz.bound import LipschitzBound as LipschitzBound
from noisette.lipschitz.certified_radius import certified_accuracy as certified_accuracy
from noisette.lipschitz.certified_radius import certify as certify
from noisette.ranks import Alone as Alone
from noisette.ranks import Ranks as Ranks
from noisette.rules.rule_check import rule as rule
from noisette.run.collation import PaddedBuckets as PaddedBuckets
from noisette.run.explain import explain as explain
from noisette.run.loading import OwnRecords as OwnRecords
from noisette.run.pca import PrivatePCA as PrivatePCA
from noisette.run.per_example import PerExampleClip as PerExampleClip
from noisette.run.private import PrivateRun as PrivateRun
from noisette.run.private import privatize as privatize
from noisette.run.sampling import *  # noqa: F403

__version__: str
