"""Benchmarks: time and memory of private training steps, as ratios to plain training."""
