"""A function of tensors as one graph of operations: traced, guarded, compiled, and the quickest way of running it."""
