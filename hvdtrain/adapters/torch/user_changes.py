"""What user code has changed of a torch model and its optimizer, looked at when an epoch begins."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from hvdtrain.adapters.agreed_changes import KeptSettings, learning_rate_changed, listed
from hvdtrain.adapters.torch.buckets import Trainable
from hvdtrain.errors import HvdtrainError
from hvdtrain.task.task import require_trainable

_SETTINGS: Final[Mapping[str, Callable[[], object]]] = {
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.get_default_device()": torch.get_default_device,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.is_grad_enabled()": torch.is_grad_enabled,
    "torch.is_inference_mode_enabled()": torch.is_inference_mode_enabled,
}


class UserChanges:
    """Compares a model and its optimizer with what they were, and knows which layers were frozen.

    Args:
        optimizer: as it is trained: with shards, of this rank's pieces.
        fixed_by: the option because of which no further parameters can be trained; "" if there is none.
        in_place: the memory of the weights must stay where it is.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, fixed_by: str, in_place: bool) -> None:
        self._model, self._optimizer, self._fixed_by, self._in_place = model, optimizer, fixed_by, in_place
        self._settings = KeptSettings(_SETTINGS)
        self._parameters = dict(model.named_parameters())
        self._buffers = _buffer_names(model)
        self._kinds = self._read_kinds()
        self._groups = self._read_groups()
        self._trained = {name for name, parameter in self._parameters.items() if parameter.requires_grad}
        self._guards: dict[str, Any] = {}
        self._guard_frozen()

    def look(self, learning_rates: Sequence[float] | None) -> list[str]:
        """The names of parameters that require gradients now.

        Args: `learning_rates`: of each group, as the last step has set them; None: there was no step yet.

        Raises `HvdtrainError`: something has changed that must not.
        """
        self._settings.require_unchanged()
        self._require_same_model()
        if self._read_groups() != self._groups:
            raise groups_changed()
        if learning_rates is not None:
            require_rates(self._optimizer.param_groups, learning_rates)
        self._require_trainable(self._unfrozen())
        return [name for name, parameter in self._parameters.items() if parameter.requires_grad]

    def take_unfrozen(self) -> Trainable:
        """Parameters that are trained from now on, and were not before; all ranks have agreed on them."""
        unfrozen = [(name, self._parameters[name]) for name in self._unfrozen()]
        for name, _ in unfrozen:
            self._trained.add(name)
            self._guards.pop(name).remove()
        return unfrozen

    def trained(self) -> Trainable:
        """All that have been trained, frozen again or not, in the model's order."""
        return [(name, parameter) for name, parameter in self._parameters.items() if name in self._trained]

    def _unfrozen(self) -> list[str]:
        return [n for n, parameter in self._parameters.items() if parameter.requires_grad and n not in self._trained]

    def _require_trainable(self, unfrozen: Sequence[str]) -> None:
        if unfrozen and self._fixed_by:
            raise HvdtrainError(
                f"User code has unfrozen {listed(unfrozen)} during training.",
                f"{self._fixed_by} divides the weights among the workers, or keeps something of each, from the start.",
                "leave their requires_grad on in build_model() and freeze them at RunStarted, or leave the option out.",
            )
        updated = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        missing = [name for name in unfrozen if id(self._parameters[name]) not in updated]
        if missing:
            raise HvdtrainError(
                f"User code has unfrozen {listed(missing)}, which the optimizer does not train.",
                "The weights would never change.",
                "give build_optimizer() all of the model's parameters: it skips those that are frozen.",
            )

    def _require_same_model(self) -> None:
        now = dict(self._model.named_parameters())
        names = now.keys() ^ self._parameters.keys()
        others = sorted(names | {n for n in now.keys() & self._parameters.keys() if now[n] is not self._parameters[n]})
        others += sorted(_buffer_names(self._model) ^ self._buffers)
        if others:
            raise HvdtrainError(
                f"User code has added, removed or replaced {listed(others)} in the model during training.",
                "The optimizer, the exchange between workers and checkpoints know those that the model had before.",
                "build all layers in build_model(), and freeze those that are to be trained later.",
            )
        kinds = self._read_kinds()
        if changed := [name for name, kind in kinds.items() if kind != self._kinds[name]]:
            raise HvdtrainError(
                f"User code has changed the dtype, the shape, the device or the memory of {listed(changed)}.",
                "The optimizer's state, the exchange between workers and checkpoints are made for what it was.",
                "choose them in build_model(), and copy new values into a weight with copy_().",
            )

    def _read_kinds(self) -> dict[str, tuple[object, ...]]:
        return {
            name: (p.dtype, p.shape, p.device, p.data_ptr() if self._in_place else None)
            for name, p in self._parameters.items()
        }

    def _read_groups(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self._optimizer.param_groups]

    def _guard_frozen(self) -> None:
        """A parameter that is unfrozen within an epoch is noticed by its first gradient."""
        for name, parameter in self._parameters.items():
            if name not in self._trained and (parameter.is_floating_point() or parameter.is_complex()):
                parameter.requires_grad_(True)  # or torch takes no hook; it stays when the parameter is frozen again
                hook = parameter.register_post_accumulate_grad_hook(_guard(name))  # type: ignore[no-untyped-call]
                self._guards[name] = hook
                parameter.requires_grad_(False)


def _buffer_names(model: nn.Module) -> set[str]:
    """Those that are None as well: training may give them values."""
    return {f"{path}.{name}" if path else name for path, module in model.named_modules() for name in module._buffers}


def _guard(name: str) -> Callable[[torch.Tensor], None]:
    def refuse(_: torch.Tensor) -> None:
        raise HvdtrainError(
            f"User code has unfrozen {name!r} within an epoch.",
            "It would be trained on each worker alone, because workers agree on what they train when an epoch begins.",
            "unfreeze it at EpochStarted or EpochEnded; or leave its requires_grad on in build_model().",
        )

    return refuse


def require_rates(groups: Sequence[Mapping[str, Any]], rates: Sequence[float]) -> None:
    """Raise `HvdtrainError` unless the learning rates of the optimizer's groups are these."""
    for group, expected in zip(groups, rates, strict=True):
        rate = group["lr"]
        if rate is not expected and rate != expected:  # rates may be tensors, which a GPU would be waited for
            raise learning_rate_changed(rate, expected)


def groups_changed() -> HvdtrainError:
    """The optimizer has other parameter groups than before."""
    return HvdtrainError(
        "User code has changed the parameter groups of the optimizer during training.",
        "A resumed run would build the optimizer without them, and the learning rates of each step are set by group.",
        "give build_optimizer() all groups from the start: it skips parameters that are frozen.",
    )


def require_gradients(losses: torch.Tensor) -> None:
    """Raise an error that says why, unless the losses of a training step have a graph."""
    if not losses.requires_grad and not torch.is_grad_enabled():
        raise HvdtrainError(
            "torch.is_grad_enabled() is False in a training step.",
            "There is nothing to differentiate, because a callback or measure() has switched gradients off.",
            "use `with torch.no_grad():` instead of torch.set_grad_enabled(False), and end inference mode too.",
        )
    require_trainable(losses.requires_grad)
