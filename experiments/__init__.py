"""Recipes whose results are committed, and the table and figure made from them."""
