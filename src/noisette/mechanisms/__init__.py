"""Releases: a bounded sum, Gaussian noise from the keystream, private principal components."""
