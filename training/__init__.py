"""The training driver: runs a step over data on all replicas, and shows how it goes.

    trainer = lockstep.training.Trainer(strategy, train_step, dataset.batch(128), steps_per_loop=10)
    trainer.train(epochs=5)
    trainer.evaluate(eval_step, held_out.batch(128))
"""

from .actions import EarlyStopping, StopOnNaN
from .progress import BarProgress, LineProgress, Progress
from .summaries import Summaries
from .trainer import Trainer

__all__ = ["BarProgress", "EarlyStopping", "LineProgress", "Progress", "StopOnNaN", "Summaries", "Trainer"]
