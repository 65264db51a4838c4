"""What of a torch model cannot be trained by several workers, or saved: refused by name, before the first step."""

import inspect
import logging
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from hvdtrain.errors import UsageError

_OPTIONAL: Final = inspect.Parameter("closure", inspect.Parameter.KEYWORD_ONLY, default=None)
_TRAINED: Final = (torch.float16, torch.float32, torch.float64)
"""Numbers that every way to sum gradients over workers can add."""

_log = logging.getLogger("hvdtrain.run")
_unsaved_at_start: WeakKeyDictionary[nn.Module, dict[str, int]] = WeakKeyDictionary()


def require_savable_model(model: nn.Module) -> None:
    """Raise `UsageError` for weights and buffers that no sum over workers takes, or no checkpoint gives back."""
    _require_weights_exist(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in _TRAINED:
            raise _not_trained(name, parameter.dtype)
    for name, tensor in (*model.named_parameters(), *_saved_buffers(model).items()):
        require_savable(f"The model's {name!r}", tensor)
        if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
            raise UsageError(
                f"The model's {name!r} has one number in memory for several of its elements.",
                "torch cannot put a checkpoint's numbers into it.",
                "call .contiguous() on what expand() made, before it becomes a part of the model.",
            )
    _unsaved_at_start[model] = {name: buffer._version for name, buffer in unsaved_buffers(model).items()}


def require_numbers(model: Any) -> None:
    """Raise `UsageError` if a part of the model is on the device "meta", from which it cannot be moved."""
    if not isinstance(model, nn.Module):
        return
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta:
            raise UsageError(
                f"The model's {name!r} is on the device 'meta'.",
                "It has a shape there, and no numbers.",
                "build it on the CPU, or call to_empty() and set its numbers in build_model().",
            )


def require_common_statistics(model: Any, hint: str) -> None:
    """Raise `UsageError`, which ends with `hint`, for torch's SyncBatchNorm in a job of several workers, where nobody
    has initialized torch.distributed."""
    if not isinstance(model, nn.Module) or (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    for name, layer in model.named_modules():
        # Ours, which is made of it, has another forward().
        if isinstance(layer, nn.SyncBatchNorm) and type(layer).forward is nn.SyncBatchNorm.forward:
            raise UsageError(
                f"The layer {name!r} is a torch.nn.SyncBatchNorm, and torch.distributed is not initialized.",
                "It would compute statistics of each rank alone, as a plain BatchNorm.",
                hint,
            )


def require_savable(what: str, tensor: torch.Tensor) -> None:
    """Raise `UsageError`, which begins with `what`, for a tensor that is more than strided numbers in memory."""
    kind = _more_than_numbers(tensor)
    if kind is not None:
        raise UsageError(
            f"{what} is {kind}.",
            "Such a tensor is neither broadcast to other workers nor saved in checkpoints.",
            "keep it as a plain tensor, and make the other form of it in forward().",
        )


def _more_than_numbers(tensor: torch.Tensor) -> str | None:
    kind = None
    if hasattr(tensor, "__tensor_flatten__"):  # torch's protocol for such
        kind = f"a {type(tensor).__name__}, which is made of other tensors"
    elif tensor.is_quantized:
        kind = f"quantized ({tensor.dtype})"
    elif tensor.layout is not torch.strided or tensor.is_nested:
        kind = "nested" if tensor.is_nested else f"sparse or in a layout of its own ({tensor.layout})"
    elif not tensor.dtype.is_floating_point and str(tensor.dtype).startswith(("torch.int", "torch.uint", "torch.bit")):
        known = {torch.uint8, torch.uint16, torch.uint32, torch.uint64}
        known |= {torch.int8, torch.int16, torch.int32, torch.int64}
        kind = None if tensor.dtype in known else f"{tensor.dtype}, which torch cannot copy"
    return kind


def warn_of_unsaved(model: nn.Module) -> None:
    """Say once which buffers training has changed in place, although the model says that they are not saved."""
    start = _unsaved_at_start.get(model, {})
    changed = [name for name, buffer in model.named_buffers() if name in start and buffer._version != start[name]]
    if changed:
        _unsaved_at_start[model] = {}
        _log.warning(
            "Training changes the buffer %r, which is registered with persistent=False and therefore not saved: "
            "a resumed run begins with what build_model() makes.",
            changed[0],
        )


def save_all_buffers(model: nn.Module) -> None:
    """Those with persistent=False are saved too, beside the model's others: there is nothing to warn of."""
    _unsaved_at_start.pop(model, None)


def unsaved_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    """Those with persistent=False, but what could not be saved."""
    saved = _saved_buffers(model)
    unsaved = {name: buffer for name, buffer in model.named_buffers() if name not in saved}
    return {name: buffer for name, buffer in unsaved.items() if _more_than_numbers(buffer) is None}


def require_usable_optimizer(optimizer: Any) -> None:
    """Raise `UsageError` if it is not an optimizer, or is one that needs the loss again."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"build_optimizer() returned {type(optimizer).__name__}.",
            "The training step calls an optimizer.",
            "return one torch.optim.Optimizer, with parameter groups where layers differ.",
        )
    if inspect.signature(optimizer.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        raise UsageError(
            f"{type(optimizer).__name__} needs a closure that computes the loss again.",
            "A step here is one gradient, summed over workers, and one update.",
            "choose an optimizer whose step() needs none.",
        )


def _require_weights_exist(model: nn.Module) -> None:
    for path, module in model.named_modules():
        tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if not any(isinstance(tensor, UninitializedParameter | UninitializedBuffer) for tensor in tensors):
            continue
        raise UsageError(
            f"The lazy layer {f'{path!r} of the model' if path else type(module).__name__} that build_model() returned "
            "has no weights yet.",
            "What does not exist cannot be made equal on all workers.",
            "call the model once on a batch of zeros in build_model(), or give the layers their sizes.",
        )


def _saved_buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    unsaved = {
        f"{path}.{name}" if path else name
        for path, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }
    return {name: buffer for name, buffer in model.named_buffers() if name not in unsaved}


def _not_trained(name: str, dtype: torch.dtype) -> UsageError:
    if dtype.is_complex:
        return UsageError(
            f"The parameter {name!r} is {dtype}.",
            "Horovod adds no complex gradients.",
            "keep real numbers, one axis longer, and call torch.view_as_complex() on them in forward().",
        )
    return UsageError(
        f"The parameter {name!r} is {dtype}.",
        "Horovod adds no gradients of that type; weights that are trained are float16, float32 or float64.",
        "build the model in float32 and train with --precision bf16; what is frozen (requires_grad=False) may stay so.",
    )
