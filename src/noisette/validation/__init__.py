"""The preflight: checks of the bound on the user's own model, with public random inputs, before any release."""

from noisette.core.model_checks import batch_mixing_modules as batch_mixing_modules
from noisette.core.model_checks import check_no_batch_norm as check_no_batch_norm
from noisette.validation.checks import CHECKS as CHECKS
from noisette.validation.checks import check_worst_case as check_worst_case
from noisette.validation.checks import prove as prove
from noisette.validation.probe_inputs import Call as Call
from noisette.validation.vectorization import check_vectorized as check_vectorized
