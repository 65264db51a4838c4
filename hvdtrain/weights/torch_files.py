"""State dicts in torch's own format. Imports torch."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from hvdtrain.errors import UsageError
from hvdtrain.weights.named_weights import Arrays

_WRAPPED_AS: Final = ("state_dict", "model_state_dict", "model")
"""Under which of these a training script's checkpoint keeps the state_dict: PyTorch's ImageNet example, its tutorial,
torchvision's references."""

_RESAVE: Final = "where you trust the file, save its state_dict alone: torch.save(model.state_dict(), PATH)."


def read_state_dict(path: Path) -> Arrays:
    """The tensors of a state_dict, or of the one inside a training script's checkpoint, as arrays; bfloat16 as float32.

    Raises:
        UsageError: the file is damaged, or holds anything else; nothing in it is executed.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{path} is not plain tensors: {_first_line(error)}.",
            "Anything else in a torch file could run code, so it is not loaded.",
            _RESAVE,
        ) from error
    tensors = _state_dict_of(content)
    if tensors is None:
        raise UsageError(f"{path} holds no state_dict.", f"It is {_described(content)}.", _RESAVE)
    odd = [name for name, value in tensors.items() if not _is_plain(value)]
    if odd:
        raise UsageError(
            f"{path} holds something else than dense tensors: {', '.join(map(str, odd[:20]))}.",
            "A model's weights are arrays.",
            "save the state_dict without them.",
        )
    return {name: _to_array(tensor) for name, tensor in tensors.items()}


def state_dict_bytes(arrays: Arrays, prefix: str) -> bytes:
    """What torch.save writes for a state_dict of `arrays`, each name behind `prefix`."""
    content = io.BytesIO()
    torch.save({prefix + name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, content)
    return content.getvalue()


def _state_dict_of(content: Any) -> Mapping[str, Any] | None:
    if not isinstance(content, Mapping):
        return None
    inside = next((content[key] for key in _WRAPPED_AS if isinstance(content.get(key), Mapping)), content)
    named = bool(inside) and all(isinstance(name, str) for name in inside)
    return inside if named and any(isinstance(value, torch.Tensor) for value in inside.values()) else None


def _is_plain(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized


def _to_array(tensor: torch.Tensor) -> Any:
    numbers = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
    return numbers.contiguous().numpy()


def _described(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a mapping of {', '.join(map(repr, list(content)[:8])) or 'nothing'}"
    return f"a {type(content).__name__}"


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    unsupported = [line.strip() for line in lines if "Unsupported" in line or "GLOBAL" in line]
    return (unsupported or lines or [type(error).__name__])[0].rstrip(". ")
