"""The options of the learning-rate schedule, checked, and the schedule that they ask for."""

from dataclasses import dataclass
from typing import Final

from hvdtrain.algorithms.lr_schedule import Schedule, Shape
from hvdtrain.config.option import NOT_NEGATIVE, POSITIVE, Group, Options, Range, option
from hvdtrain.errors import UsageError

_POWER = 2.0  # You et al. 2017, arXiv:1708.03888, section 5
_GAMMA = 0.1  # He et al. 2015, arXiv:1512.03385, section 3.4
_FACTOR: Final = Range("between 0 and 1", lambda gamma: 0 < gamma < 1)


@dataclass(frozen=True)
class ScheduleOptions(Options):
    """How the learning rate falls after its warm-up."""

    lr_schedule: Shape = option("cosine", Group.LEARNING_RATE).help("""constant; or down to lr_min at the last step by a
        cosine, a straight line (linear) or a power of the remaining share (polynomial); or step: multiplied by lr_gamma
        at each of lr_milestones.""")
    lr_power: float | None = option(None, Group.LEARNING_RATE, must=POSITIVE, example="2").help(
        "power of polynomial (default: 2)."
    )
    lr_min: float | None = option(None, Group.LEARNING_RATE, must=NOT_NEGATIVE, example="1e-5").help(
        "learning rate at the end of cosine, linear and polynomial (default: 0)."
    )
    lr_milestones: list[float] | None = option(None, Group.LEARNING_RATE, metavar="NUMBER,...").help(
        """epochs at which step changes the learning rate, e.g. 30,60,80; fractions of epochs are allowed. Only
        step needs them."""
    )
    lr_gamma: float | None = option(None, Group.LEARNING_RATE, must=_FACTOR, example="0.1").help(
        "factor of step at each milestone (default: 0.1)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr_schedule == "step":
            _check_milestones(self.lr_milestones or [])


def schedule_of(options: ScheduleOptions, peak: float, epochs: int, warmup_epochs: float, epoch_steps: int) -> Schedule:
    """The schedule of a training, of `epochs` with `epoch_steps` updates each. Raises UsageError: the warm-up, a
    milestone or the least learning rate does not fit the training."""
    milestones = options.lr_milestones or []
    schedule = Schedule(
        peak,
        epochs * epoch_steps,
        round(warmup_epochs * epoch_steps),
        options.lr_schedule,
        0.0 if options.lr_min is None else options.lr_min,
        _POWER if options.lr_power is None else options.lr_power,
        tuple(round(milestone * epoch_steps) for milestone in milestones),
        _GAMMA if options.lr_gamma is None else options.lr_gamma,
    )
    if schedule.warmup_steps >= schedule.total_steps:
        raise UsageError(
            f"Warm-up takes {schedule.warmup_steps} steps of {schedule.total_steps}.",
            "The learning rate would never reach its peak.",
            f"give --warmup-epochs less than the {epochs} epochs.",
        )
    for milestone in milestones:
        _require_between(milestone, epochs, warmup_epochs)
    if schedule.least >= peak:
        raise UsageError(
            f"--lr-min is {schedule.least:g}, and the peak of the learning rate {peak:g}.",
            "The learning rate would rise, or stay, where it is to fall.",
            "give --lr-min less, or --lr-schedule constant.",
        )
    return schedule


def _check_milestones(milestones: list[float]) -> None:
    shown = ",".join(f"{milestone:g}" for milestone in milestones)
    if not milestones:
        raise UsageError(
            "--lr-schedule step is given without --lr-milestones.",
            "Nothing says when the learning rate goes down.",
            "give the epochs, e.g. --lr-milestones 30,60,80.",
        )
    if not all(0 < milestone < float("inf") for milestone in milestones):
        raise UsageError(
            f"--lr-milestones is {shown}.", "Epochs are positive numbers.", "try --lr-milestones 30,60,80."
        )
    if any(later <= earlier for earlier, later in zip(milestones, milestones[1:], strict=False)):
        raise UsageError(
            f"--lr-milestones is {shown}.",
            "One of them does not come after the one before it, which is most often a slip.",
            "write them in ascending order, each once.",
        )


def _require_between(milestone: float, epochs: int, warmup_epochs: float) -> None:
    if milestone >= epochs:
        raise UsageError(
            f"--lr-milestones has {milestone:g}, and training ends after {epochs} epochs.",
            "It would change nothing.",
            "leave it out, or give more --epochs.",
        )
    if milestone < warmup_epochs:
        raise UsageError(
            f"--lr-milestones has {milestone:g}, and the warm-up takes {warmup_epochs:g} epochs.",
            "The learning rate would go down before it was at its peak.",
            "give a later milestone, or fewer --warmup-epochs.",
        )
