"""The tasks that come with hvdtrain, by name, and loading a user's own."""

from __future__ import annotations

from hvdtrain.tasks.registry import BUILT_IN, load_task

__all__ = ["BUILT_IN", "load_task"]
