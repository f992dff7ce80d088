"""Recipes with committed results, and scripts that make tables and pictures of the documentation."""
