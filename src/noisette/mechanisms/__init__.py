"""Mechanisms: bounded sums, Gaussian noise from the keystream, the Gaussian release, and private PCA."""
