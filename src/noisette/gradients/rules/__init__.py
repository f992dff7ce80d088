"""Per-example gradients, one file per family of operations. Importing this package registers all rules."""

from importlib import import_module
from pkgutil import iter_modules

from noisette.gradients.rules.examples import Examples as Examples
from noisette.gradients.rules.forms import Dense as Dense
from noisette.gradients.rules.forms import ExampleGradients as ExampleGradients
from noisette.gradients.rules.forms import Outer as Outer
from noisette.gradients.rules.forms import PerExampleRow as PerExampleRow
from noisette.gradients.rules.forms import Rows as Rows
from noisette.gradients.rules.forms import add as add
from noisette.gradients.rules.forms import compact as compact
from noisette.gradients.rules.forms import placed as placed
from noisette.gradients.rules.registry import find_rule as find_rule
from noisette.gradients.rules.registry import match as match
from noisette.gradients.rules.registry import named_arguments as named_arguments
from noisette.gradients.rules.registry import operation_name as operation_name
from noisette.gradients.rules.registry import rewrite as rewrite
from noisette.gradients.rules.registry import rewrites as rewrites
from noisette.gradients.rules.registry import rule as rule

for _file in iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
