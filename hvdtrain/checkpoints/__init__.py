"""Checkpoints: safetensors files and a manifest, written whole or not at all, readable at any world size."""

from __future__ import annotations

from hvdtrain.checkpoints.format import Checkpoint, DamagedCheckpointError, read_checkpoint, write_checkpoint
from hvdtrain.checkpoints.store import CheckpointStore
from hvdtrain.checkpoints.writer import CheckpointWriter

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "CheckpointWriter",
    "DamagedCheckpointError",
    "read_checkpoint",
    "write_checkpoint",
]
