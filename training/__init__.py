"""The training driver: runs a step over data on all replicas, and shows how it goes.

    trainer = lockstep.training.Trainer(strategy, train_step, dataset.batch(128), steps_per_loop=10)
    trainer.train(epochs=5)
    trainer.evaluate(eval_step, held_out.batch(128))
"""

from .actions import Every
from .keeping import BestCheckpoint, Export
from .profile_steps import ProfileSteps
from .progress import BarProgress, LineProgress, Progress
from .reduce_on_plateau import ReduceOnPlateau
from .stopping import EarlyStopping, StopOnNaN
from .summaries import Summaries
from .trainer import Trainer

__all__ = [
    "BarProgress",
    "BestCheckpoint",
    "EarlyStopping",
    "Every",
    "Export",
    "LineProgress",
    "ProfileSteps",
    "Progress",
    "ReduceOnPlateau",
    "StopOnNaN",
    "Summaries",
    "Trainer",
]
