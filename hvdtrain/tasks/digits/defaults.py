"""What the digits are trained with where the user says nothing."""

from __future__ import annotations

from hvdtrain.task import TaskDefaults

DEFAULTS = TaskDefaults(epochs=12, global_batch_size=48, lr=2e-3, warmup_epochs=1.0)
