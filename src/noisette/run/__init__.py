"""A private training run: the loop, its guarantee, and what it keeps on disk."""
