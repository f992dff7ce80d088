"""Reproductions of the experiments of published papers, with the printed number beside ours."""
