"""Passes of virtual workers that are repeated in torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from data_sharding import LoadedBatch
from hvdtrain.adapters.adapter_protocol import MeasureTotals
from hvdtrain.adapters.step_timer import StepTimer
from hvdtrain.adapters.torch.checksum import checksum
from hvdtrain.adapters.torch.device import require_threads
from hvdtrain.adapters.torch.passes import Measurement
from hvdtrain.adapters.torch.virtual_passes import WorkersPasses
from hvdtrain.adapters.torch.virtual_sync import TAKES_GRADIENTS, WorkersGradients
from hvdtrain.adapters.worker_states import AlternatingStates
from hvdtrain.errors import UsageError
from hvdtrain.named_arrays import NO_STATE


class TorchPassChecks:
    """Implements `PassChecks`."""

    def __init__(
        self,
        model: nn.Module,
        sync: WorkersGradients,
        passes: WorkersPasses,
        states: AlternatingStates[torch.Tensor],
    ) -> None:
        named = list(model.named_parameters())  # also those that are trained later
        self.names: Sequence[str] = [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._sync, self._states = sync, states
        self._passes = replace(passes, timer=StepTimer())  # whose times nobody reads
        of = passes.measurement
        self._measurement = Measurement(of.task, of.precision, of.device)  # whose sums nobody reads

    def note(self, workers: Sequence[int]) -> None:
        self._sync.notes = {worker: {} for worker in workers}

    def noted(self) -> Mapping[int, NDArray[np.int64]]:
        notes, self._sync.notes = self._sync.notes, {}
        return {worker: self._in_order(gradients) for worker, gradients in notes.items()}

    def repeated(
        self, batch: LoadedBatch, worker: int, step: int, state: Mapping[str, NDArray[Any]] = NO_STATE
    ) -> NDArray[np.int64]:
        require_threads()
        before = self._states.replaced(state)
        self._passes.mode.set(True)
        self._passes.draws.begin_of(worker, step)
        with self._passes.weights_unchanged():
            losses, shares = self._passes.weighted_losses(batch, self._measurement, aligned=True)
            trained = [parameter for parameter in self._parameters if parameter.requires_grad]
            gradients = _gradients(losses, trained, shares)
        self._states.put_back(before)
        self._measurement.read()
        return self._in_order({each: checksum(gradient) for each, gradient in zip(trained, gradients, strict=True)})

    @torch.no_grad()
    def measured_twice(self, batch: LoadedBatch, worker: int) -> tuple[MeasureTotals, MeasureTotals, list[str]]:
        def evaluate() -> MeasureTotals:
            self._passes.evaluate_part(batch, worker, batch.step, self._measurement)
            return self._measurement.read()

        return self._states.twice_without_trace(evaluate)

    def begin_anew(self) -> bool:
        return False

    def _in_order(self, checksums: Mapping[nn.Parameter, torch.Tensor]) -> NDArray[np.int64]:
        nothing = checksum(None)
        found = [checksums.get(parameter, nothing) for parameter in self._parameters]
        return np.array(torch.stack([each.to(found[0].device) for each in found]).tolist(), np.int64)


def _gradients(
    losses: torch.Tensor, trained: Sequence[nn.Parameter], shares: torch.Tensor
) -> Sequence[torch.Tensor | None]:
    """As a backward pass gives them, without a trace of it. Raises `UsageError`: the model does not allow that."""
    try:
        gradients = torch.autograd.grad([losses], trained, [shares], allow_unused=True)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        raise UsageError(
            "--virtual-workers is given, and the model checkpoints activations with use_reentrant=True.",
            "Passes are repeated for comparing their gradients, which torch does not allow with that.",
            "give torch.utils.checkpoint.checkpoint(…, use_reentrant=False), or --activation-checkpointing instead.",
        ) from error
    return [_as_hooks_leave_it(*pair) for pair in zip(trained, gradients, strict=True)]


def _as_hooks_leave_it(parameter: nn.Parameter, gradient: torch.Tensor | None) -> torch.Tensor | None:
    """The gradient after those of the task's own hooks that run before hvdtrain's."""
    hooks = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
    earlier = [*takewhile(lambda hook: not hasattr(hook, TAKES_GRADIENTS), hooks.values())]
    if gradient is None or not earlier:
        return gradient
    kept, parameter.grad = parameter.grad, gradient
    for hook in earlier:
        hook(parameter)
    changed, parameter.grad = parameter.grad, kept
    return changed
