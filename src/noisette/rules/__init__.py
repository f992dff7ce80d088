"""Per-example gradients, one file per family of operations. Importing this room registers every rule in it."""

from noisette.rules import activation as activation
from noisette.rules import attention as attention
from noisette.rules import broadcasting as broadcasting
from noisette.rules import conv as conv
from noisette.rules import einsum as einsum
from noisette.rules import elementwise as elementwise
from noisette.rules import embedding as embedding
from noisette.rules import joining as joining
from noisette.rules import likeness as likeness
from noisette.rules import linear as linear
from noisette.rules import normalization as normalization
from noisette.rules import recurrent as recurrent
from noisette.rules._examples import Examples as Examples
from noisette.rules._registry import find_rule as find_rule
from noisette.rules._registry import named_arguments as named_arguments
from noisette.rules._registry import operation_name as operation_name
from noisette.rules._registry import rewrite as rewrite
from noisette.rules._registry import rewrites as rewrites
from noisette.rules._registry import rule as rule
from noisette.rules.gradients import Dense as Dense
from noisette.rules.gradients import ExampleGradients as ExampleGradients
from noisette.rules.gradients import Outer as Outer
from noisette.rules.gradients import PerExampleRow as PerExampleRow
from noisette.rules.gradients import Rows as Rows
from noisette.rules.gradients import add as add
from noisette.rules.gradients import kept as kept
