"""The exponential moving average of a torch model's weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from numpy.typing import NDArray

from hvdtrain.algorithms.ema import PREFIX, kept_share, saved_averages


@final
class WeightAverage:
    """Averages of all trainable parameters, on their devices; buffers such as BatchNorm's statistics stay the model's.

    Call `update` after each optimizer step. A parameter that several layers share has one average.

    Args:
        model: with the weights that the averages start from.
        decay: the share of an average that stays at an update, 0 to below 1; at first less, see `kept_share`.
    """

    def __init__(self, model: torch.nn.Module, decay: float) -> None:
        self._decay = decay
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._averages = {name: p.detach().clone() for name, p in self._parameters.items()}

    def update(self, step: int) -> None:
        """Draw the averages towards the weights that update `step`, counted from 0, has left. Does not wait."""
        torch._foreach_lerp_(self._own(), self._theirs(), 1 - kept_share(self._decay, step))

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Within, the model has the averages for its weights; afterwards its own again, bit by bit, come what may."""
        kept = [tensor.clone() for tensor in self._theirs()]
        try:
            self._put(self._own())
            yield
        finally:
            self._put(kept)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies in host memory, as "ema/NAME" with the parameters' names."""
        arrays = {name: average.to("cpu", copy=True).contiguous() for name, average in self._averages.items()}
        return {PREFIX + name: array.numpy() for name, array in arrays.items()}

    @torch.no_grad()
    def load_state(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Take up what `state` returned; without it, start from the weights, which must be there already.

        Args:
            state: named arrays, also of other things.

        Raises:
            UsageError: the averages are another model's.
        """
        shapes = {name: tuple(p.shape) for name, p in self._parameters.items()}
        saved = saved_averages(state, shapes)
        for name, average in self._averages.items():
            # A copy: the array may be a read-only file map.
            average.copy_(self._parameters[name] if saved is None else torch.from_numpy(saved[name].copy()))

    def _own(self) -> list[torch.Tensor]:
        return list(self._averages.values())

    def _theirs(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self._parameters.values()]

    def _put(self, tensors: list[torch.Tensor]) -> None:
        torch._foreach_copy_(self._theirs(), tensors)
