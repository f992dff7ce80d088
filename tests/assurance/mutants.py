"""All planted faults, in the order of one training step."""

from __future__ import annotations

import bound_faults
import clipless_faults
import noise_faults
import sampling_faults
import spending_faults
import vectorised_faults

GROUPS = {
    "Batches, and public numbers": sampling_faults.MUTANTS,
    "Bounds by clipping": bound_faults.MUTANTS,
    "Bounds by clipping, of a vectorised loss": vectorised_faults.MUTANTS,
    "Bounds without clipping": clipless_faults.MUTANTS,
    "Noise": noise_faults.MUTANTS,
    "Ledger, price and resumed runs": spending_faults.MUTANTS,
}
MUTANTS = [mutant for group in GROUPS.values() for mutant in group]
