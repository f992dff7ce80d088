"""Proves the bound on the user's own model, with public random inputs, before anything private is released."""

from noisette.validation.batch_norm import mixing_modules as mixing_modules
from noisette.validation.batch_norm import refuse_mixing_modules as refuse_mixing_modules
from noisette.validation.checks import CHECKS as CHECKS
from noisette.validation.checks import Check as Check
from noisette.validation.checks import ProvenFirst as ProvenFirst
from noisette.validation.checks import prove as prove
from noisette.validation.probe_inputs import Call as Call
