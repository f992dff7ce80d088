"""Proves the bound on the user's own model, with public random inputs, before anything private is released."""

from noisette.preflight.calls import Call as Call
from noisette.preflight.known_modules import mixing_modules as mixing_modules
from noisette.preflight.known_modules import refuse_mixing_modules as refuse_mixing_modules
from noisette.preflight.proof import CHECKS as CHECKS
from noisette.preflight.proof import Check as Check
from noisette.preflight.proof import ProvenFirst as ProvenFirst
from noisette.preflight.proof import prove as prove
