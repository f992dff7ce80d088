"""What a run leaves on disk while it is under way, so that another process can go on with it."""

from noisette.saving.fingerprint import Fingerprint as Fingerprint
from noisette.saving.saved_run import SavedRun as SavedRun

__all__ = ["Fingerprint", "SavedRun"]
