"""All planted faults, in the order of one training step."""

from __future__ import annotations

import attack_faults
import banded_faults
import batches_faults
import bound_faults
import capture_faults
import clipless_call_faults
import clipless_faults
import engine_faults
import ingredients_faults
import ledger_faults
import lightning_faults
import loop_faults
import memory_faults
import noise_faults
import numbers_faults
import one_by_one_faults
import oracle_faults
import price_faults
import published_faults
import ranks_faults
import records_faults
import rounding_faults
import sampling_faults
import search_faults
import spending_faults
import vectorized_faults

GROUPS = {
    "Batches, and public numbers": sampling_faults.MUTANTS + batches_faults.MUTANTS,
    "Drawing and loading of records": records_faults.MUTANTS,
    "Loops, optimizers and collation": loop_faults.MUTANTS,
    "Trainers of other libraries": lightning_faults.MUTANTS,
    "Bounds by clipping": bound_faults.MUTANTS,
    "Rounding": rounding_faults.MUTANTS,
    "Captured steps": capture_faults.MUTANTS,
    "Passes that are repeated": engine_faults.MUTANTS,
    "Memory": memory_faults.MUTANTS,
    "Examples kept apart": vectorized_faults.MUTANTS + one_by_one_faults.MUTANTS,
    "Bounds without clipping": clipless_faults.MUTANTS + clipless_call_faults.MUTANTS,
    "State that is published with the weights": published_faults.MUTANTS,
    "Random numbers within a batch": numbers_faults.MUTANTS,
    "Noise": noise_faults.MUTANTS,
    "Noise that is correlated over steps": banded_faults.MUTANTS,
    "Prices": price_faults.MUTANTS + oracle_faults.MUTANTS + attack_faults.MUTANTS,
    "Ledger and resumed runs": spending_faults.MUTANTS + ledger_faults.MUTANTS,
    "Several ranks": ranks_faults.MUTANTS,
    "Views, averages, and small runs": ingredients_faults.MUTANTS,
    "Searches and closed form": search_faults.MUTANTS,
}
MUTANTS = [mutant for group in GROUPS.values() for mutant in group]
