# %% [markdown]
# # Audit your training
#
# A proof bounds from above how much one record changes what is released. An audit gives a bound from below: it hides
# canaries among random records, and measures what an attacker would see of them. It needs none of your data.

# %%
import noisette
from noisette.audit import assert_consistent, audit_bound

# %% [markdown]
# The audit uses the real loop of `noisette.privatize`. It gets a function that makes the bound, here with clipping of
# each layer, and the noise multiplier.

# %%
audit = audit_bound(
    lambda model: noisette.PerExampleClip(model, clipping=noisette.PerLayerClipping(0.5)), noise_multiplier=1.0
)

# %% [markdown]
# `assert_consistent` raises an error if what was seen refutes the guarantee. `certified_mu` is how far apart the
# outcomes with and without one record were shown to be, in standard deviations of the noise; the guarantee allows 1.

# %%
assert_consistent(audit)
print(f"at least {audit.certified_mu:.2f} of at most 1")

# %% [markdown]
# A finished run is audited by `noisette audit FOLDER`. For a training step of your own, of any library, see [auditing
# your own training](../how-to/audit-your-own-training.md).
