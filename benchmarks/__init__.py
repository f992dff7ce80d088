"""Benchmarks, as ratios to plain training within one run."""
