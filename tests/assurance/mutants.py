"""All planted faults, in the order of one training step."""

from __future__ import annotations

import bound_faults
import clipless_faults
import noise_faults
import sampling_faults
import spending_faults

MUTANTS = [
    *sampling_faults.MUTANTS,
    *bound_faults.MUTANTS,
    *clipless_faults.MUTANTS,
    *noise_faults.MUTANTS,
    *spending_faults.MUTANTS,
]
