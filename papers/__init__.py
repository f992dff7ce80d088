"""Reproductions of published papers: each figure and table with the printed numbers beside ours."""
