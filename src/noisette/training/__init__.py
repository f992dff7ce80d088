"""A recipe at work: builds the model, trains it, and keeps what may be published about the run."""

from noisette.training.loop import evaluate as evaluate
from noisette.training.loop import resume as resume
from noisette.training.loop import train as train
from noisette.training.outcome import Outcome as Outcome
from noisette.training.outcome import Point as Point
from noisette.training.outcome import Watch as Watch

__all__ = ["Outcome", "Point", "Watch", "evaluate", "resume", "train"]
