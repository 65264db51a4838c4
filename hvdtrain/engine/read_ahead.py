"""No gap at the end of an epoch: once its last batch is here, what is read next begins, while the model still works.

Two are never read at once, so no more threads and processes decode than inside an epoch. The first batches of the next
epoch are held while the checkpoint of this one's end is saved. What was begun and is not needed is given up when the
run ends.
"""

from dataclasses import dataclass

from hvdtrain.engine.source import Source


@dataclass(frozen=True)
class ReadAhead:
    """Begins what follows an epoch of training or its validation; `last` is the update after which the run ends."""

    train: Source
    validation: Source | None
    steps_per_epoch: int
    last: int

    def after_training(self, step: int) -> None:
        """The batch of update `step` is here. If it is the last of an epoch, validation follows, or the next epoch."""
        if step % self.steps_per_epoch:
            return  # the run ends here, and its loader still reads on
        if self.validation is not None:
            self.validation.begin(0)
        else:
            self.after_validation(step)

    def after_validation(self, step: int) -> None:
        """The last batch of the validation after update `step` is here."""
        if step % self.steps_per_epoch == 0 and step < self.last:
            self.train.begin(step // self.steps_per_epoch)

    def close(self) -> None:
        """Give up what was begun."""
        self.train.abandon()
        if self.validation is not None:
            self.validation.abandon()
