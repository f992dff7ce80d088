"""Which records a step sees: Poisson batches in microbatches, and how records are loaded."""
