"""Experiments of published papers made again, with the printed number beside ours."""
