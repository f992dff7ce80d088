"""Algorithm 1 of Abadi et al. 2016: batches, per-example gradients, clipping, noise, and the release."""
