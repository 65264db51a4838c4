"""What a user writes: a task."""

from hvdtrain.task.task import Splits, Task, TaskDefaults

__all__ = ["Splits", "Task", "TaskDefaults"]
