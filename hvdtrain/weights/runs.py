"""A run or checkpoint folder of hvdtrain as a source of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hvdtrain.checkpoints.format import Checkpoint
from hvdtrain.checkpoints.resume import checkpoint_at
from hvdtrain.errors import UsageError
from hvdtrain.weights.named_weights import Arrays, NamedWeights

_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Run:
    """The checkpoint that stands for a run.

    Attributes:
        path: as it was given.
        checkpoint: its newest sound one, or the one that was named.
    """

    path: Path
    checkpoint: Checkpoint

    @property
    def about(self) -> Mapping[str, Any]:
        """What the manifest says: framework, task, task_args, config, …"""
        return self.checkpoint.about

    @property
    def step(self) -> int:
        """Updates that the weights have seen."""
        return self.checkpoint.position.step

    def weights(self, averaged: bool = False) -> NamedWeights:
        """The model's weights; with `averaged`, their exponential moving averages where the run kept them.

        Raises:
            UsageError: the run kept none.
        """
        arrays = self._part("model/")
        if averaged:
            averages = self._part("ema/")
            if not averages:
                raise UsageError(
                    f"{self.path} holds no averages of its weights.",
                    "--ema asks for them.",
                    "leave --ema out, or train with --ema-decay.",
                )
            arrays |= averages  # buffers such as BatchNorm's statistics have no average
        origin = f"{self.path} (step {self.step})"
        return NamedWeights(arrays, "torch" if self.about["framework"] == "torch" else "tensorflow", origin)

    def _part(self, prefix: str) -> Arrays:
        state = self.checkpoint.state
        return {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}


def read_run(path: Path, given_as: str = "--init-weights") -> Run:
    """The newest sound checkpoint of a run folder, or the checkpoint that `path` is, or a file in one.

    Raises:
        UsageError: there is none.
    """
    return Run(path, checkpoint_at(path.parent if is_in_checkpoint(path) else path, given_as))


def is_in_checkpoint(path: Path) -> bool:
    """Whether it is one of a checkpoint's own files, whose names are not those of the weights alone."""
    return path.is_file() and path.suffix == ".safetensors" and (path.parent / _MANIFEST).is_file()
