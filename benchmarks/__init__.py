"""Benchmarks of whole runs and of norms, as ratios to a baseline measured in the same run."""
