"""Training and evaluation mode of a torch model, whatever a callback or the task's measure() has done to it."""

from collections.abc import Sequence

from torch import nn


class TrainingMode:
    """Sets the mode of all layers where it changes, and where user code has changed that of a whole model.

    Before each pass only the flags of whole models are looked at: to ask all layers costs as much as a small layer.
    What user code does to single layers lasts until `begin_epoch`, or until the mode changes.

    Args: `modules`: the model; with stages its parts on this process too.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._modules = modules
        self._mode: bool | None = None
        self._flags: list[bool] = []

    def begin_epoch(self) -> None:
        self._set_all(True)

    def set(self, training: bool) -> None:
        if training != self._mode or self._read() != self._flags:
            self._set_all(training)

    def _set_all(self, training: bool) -> None:
        for module in self._modules:
            module.train(training)
        # A model's own train() may set another flag.
        self._mode, self._flags = training, self._read()

    def _read(self) -> list[bool]:
        return [module.training for module in self._modules]
