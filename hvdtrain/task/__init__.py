"""What a user writes: a task."""

from hvdtrain.task.interface import Splits, Task, TaskDefaults

__all__ = ["Splits", "Task", "TaskDefaults"]
