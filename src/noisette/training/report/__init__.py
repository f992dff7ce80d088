"""The results of a run: its facts, the report with its figures, and the privacy statement."""
