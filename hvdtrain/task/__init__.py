"""What a user writes: a task."""

from hvdtrain.task.splits import Splits
from hvdtrain.task.task import Task, TaskDefaults

__all__ = ["Splits", "Task", "TaskDefaults"]
