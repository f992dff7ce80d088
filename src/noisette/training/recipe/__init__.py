"""The recipe of a run: a TOML file of short tables, read into frozen dataclasses."""

from noisette.training.recipe.choices import ALLOCATIONS as ALLOCATIONS
from noisette.training.recipe.choices import BATCH_NORMS as BATCH_NORMS
from noisette.training.recipe.choices import BATCHES as BATCHES
from noisette.training.recipe.choices import COMPILE as COMPILE
from noisette.training.recipe.choices import NEED_PUBLIC as NEED_PUBLIC
from noisette.training.recipe.choices import OPTIMIZERS as OPTIMIZERS
from noisette.training.recipe.constraints import ACCOUNTANTS as ACCOUNTANTS
from noisette.training.recipe.constraints import accountant_names as accountant_names
from noisette.training.recipe.defaults import default_recipe as default_recipe
from noisette.training.recipe.recipe import Recipe as Recipe
from noisette.training.recipe.schema import read_schema as read_schema
from noisette.training.recipe.sections import AugmentationSection as AugmentationSection
from noisette.training.recipe.sections import DataSection as DataSection
from noisette.training.recipe.sections import LipschitzSection as LipschitzSection
from noisette.training.recipe.sections import ModelSection as ModelSection
from noisette.training.recipe.sections import PrivacySection as PrivacySection
from noisette.training.recipe.sections import ProjectionSection as ProjectionSection
from noisette.training.recipe.sections import PublicSection as PublicSection
from noisette.training.recipe.sections import TrainingSection as TrainingSection
