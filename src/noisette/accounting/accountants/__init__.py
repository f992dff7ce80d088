"""One file for each accountant."""
