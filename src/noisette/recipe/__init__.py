"""A run as data: a TOML file of short tables, read into frozen dataclasses."""

from noisette.recipe.checks import ACCOUNTANTS as ACCOUNTANTS
from noisette.recipe.checks import ALLOCATIONS as ALLOCATIONS
from noisette.recipe.checks import BATCH_NORMS as BATCH_NORMS
from noisette.recipe.checks import NEED_PUBLIC as NEED_PUBLIC
from noisette.recipe.recipe import Recipe as Recipe
from noisette.recipe.sections import DataSection as DataSection
from noisette.recipe.sections import LipschitzSection as LipschitzSection
from noisette.recipe.sections import ModelSection as ModelSection
from noisette.recipe.sections import PrivacySection as PrivacySection
from noisette.recipe.sections import ProjectionSection as ProjectionSection
from noisette.recipe.sections import PublicSection as PublicSection
from noisette.recipe.sections import TrainingSection as TrainingSection
