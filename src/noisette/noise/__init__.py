"""Noise on other devices, banded noise, and private principal components."""
