"""State dicts in torch's own format, and torch models as files that other programs run. Imports torch."""

import inspect
import io
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hvdtrain.adapters.torch.tensor_arrays import known_to_numpy, view_of
from hvdtrain.errors import UsageError
from hvdtrain.task.task import Task
from hvdtrain.weights.named_weights import Arrays, Versions, no_onnx

_PROTOBUF_BYTES: Final = 2**31 - 2**20  # an ONNX file is one protobuf message, which ends below 2 GiB

_WRAPPED_AS: Final = ("state_dict", "model_state_dict", "model")
"""Under which of these a training script's checkpoint keeps the state_dict: PyTorch's ImageNet example, its tutorial,
torchvision's references."""

_RESAVE: Final = "where you trust the file, save its state_dict alone: torch.save(model.state_dict(), PATH)."


class _SeenInputError(Exception):
    """The model was called; ends the task's measure()."""


def read_state_dict(path: Path) -> tuple[Arrays, Versions]:
    """The tensors of a state_dict, or of the one inside a training script's checkpoint, as arrays; bfloat16 as float32.

    Returns:
        The arrays, and what the file states of the modules' versions.

    Raises `UsageError`: the file is damaged, or holds anything else; nothing in it is executed.
    """
    _require_stored(path)
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
        raise UsageError(f"{path} holds no state_dict.", f"It is {_content_of(content)}.", _RESAVE)
    odd = [name for name, value in tensors.items() if not _is_plain(value)]
    if odd:
        raise UsageError(
            f"{path} holds something else than dense tensors: {', '.join(map(str, odd[:20]))}.",
            "A model's weights are arrays that take their full size in the file.",
            "save the state_dict without them.",
        )
    return {name: view_of(known_to_numpy(tensor)) for name, tensor in tensors.items()}, _versions_of(tensors)


def _require_stored(path: Path) -> None:
    """Refuse a compressed zip file: torch.save never compresses, and some bytes could expand to any size."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        packed = [member.filename for member in archive.infolist() if member.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise UsageError(
            f"{path} is a compressed zip file: {packed[0]} could expand to any size.",
            "torch.save writes none, so it is not loaded.",
            _RESAVE,
        )


def state_dict_bytes(arrays: Arrays, prefix: str) -> bytes:
    """What torch.save writes for a state_dict of `arrays`, each name behind `prefix`."""
    content = io.BytesIO()
    torch.save({prefix + name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}, content)
    return content.getvalue()


def write_model(
    model: torch.nn.Module, task: Task, features: Mapping[str, NDArray[Any]], format_name: str, path: Path
) -> str:
    """Write a model for inference as "torchscript", "torch-export" or "onnx". Returns what it takes, in words.

    Args:
        task: whose measure() shows how the model is called.
        features: of two samples or more, as the task's decode() gives them.

    Raises `UsageError`: the model cannot be written so; the reason is torch's own.
    """
    model.eval()
    inputs = _inputs(model, task, features)
    samples = len(next(iter(features.values())))
    write = {"torchscript": _torchscript, "torch-export": _torch_export, "onnx": _onnx}[format_name]
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # TorchScript is deprecated as a whole, and the exporters of torch 2.13 use what is deprecated in it.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", FutureWarning)
            content = write(model, inputs, samples)
    except ModuleNotFoundError as error:
        raise no_onnx(error, "torch") from error
    except (RuntimeError, torch._dynamo.exc.UserError, torch.onnx.OnnxExporterError) as error:
        raise UsageError(
            f"The model cannot be written as {format_name}: {str(error).strip().splitlines()[0].rstrip('.')}.",
            "torch follows what forward() computes, which must not depend on values in Python.",
            "export weights alone (safetensors, state-dict), or write forward() without such branches.",
        ) from error
    path.write_bytes(content)
    return ", ".join(_described(name, value, samples) for name, value in inputs.items())


def _inputs(model: torch.nn.Module, task: Task, features: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """What measure() calls the model with, by the names of forward()'s arguments."""
    seen: dict[str, Any] = {}

    def look(_: torch.nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        bound = inspect.signature(model.forward).bind(*args, **options)
        if bound.kwargs:
            raise UsageError(
                f"The task calls its model with {', '.join(bound.kwargs)} by name only.",
                "Written models take their inputs by place.",
                "give them by place in measure().",
            )
        seen.update(zip(bound.signature.parameters, bound.args, strict=False))
        raise _SeenInputError

    handle = model.register_forward_pre_hook(look, with_kwargs=True)
    try:
        with torch.no_grad():
            task.measure(model, {name: torch.from_numpy(np.array(array)) for name, array in features.items()})
    except _SeenInputError:
        return seen
    finally:
        handle.remove()
    raise UsageError(
        "The task's measure() does not call the model itself.",
        "So it does not show what the model takes.",
        "call model(...) in it, or export weights alone (safetensors, state-dict).",
    )


def _torchscript(model: torch.nn.Module, inputs: Mapping[str, Any], _: int) -> bytes:
    content = io.BytesIO()
    traced = torch.jit.trace(model, tuple(inputs.values()))  # type: ignore[no-untyped-call]
    torch.jit.save(traced, content)
    return content.getvalue()


def _torch_export(model: torch.nn.Module, inputs: Mapping[str, Any], samples: int) -> bytes:
    content = io.BytesIO()
    program = torch.export.export(model, tuple(inputs.values()), dynamic_shapes=_batched(inputs, samples))
    torch.export.save(program, content)
    return content.getvalue()


def _onnx(model: torch.nn.Module, inputs: Mapping[str, Any], samples: int) -> bytes:
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    if weights > _PROTOBUF_BYTES:
        raise UsageError(
            f"The weights are {weights:,} bytes.", "An ONNX file ends below 2 GiB.", "export as torch-export."
        )
    program = torch.onnx.export(
        model,
        tuple(inputs.values()),
        input_names=list(inputs),
        dynamo=True,
        dynamic_shapes=_batched(inputs, samples),
        verbose=False,
    )
    if program is None:
        raise ValueError("torch.onnx.export(dynamo=True) returns a program")
    content: bytes = program.model_proto.SerializeToString()
    return content


def _batched(inputs: Mapping[str, Any], samples: int) -> tuple[Any, ...]:
    """The first axis of what has one row a sample may have any length."""
    batch = torch.export.Dim("batch")
    return tuple({0: batch} if _has_rows(value, samples) else None for value in inputs.values())


def _has_rows(value: Any, samples: int) -> bool:
    return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] == samples


def _described(name: str, value: Any, samples: int) -> str:
    if not isinstance(value, torch.Tensor):
        return f"{name}={value!r}"
    shape = ["batch" if _has_rows(value, samples) else str(value.shape[0]), *map(str, value.shape[1:])]
    return f"{name} {str(value.dtype).removeprefix('torch.')} [{', '.join(shape)}]"


def _state_dict_of(content: Any) -> Mapping[str, Any] | None:
    if not isinstance(content, Mapping):
        return None
    inside = next((content[key] for key in _WRAPPED_AS if isinstance(content.get(key), Mapping)), content)
    named = bool(inside) and all(isinstance(name, str) for name in inside)
    return inside if named and any(isinstance(value, torch.Tensor) for value in inside.values()) else None


def _is_plain(value: Any) -> bool:
    """An expanded tensor is a view of any size on some bytes, so that reading it could take any memory."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
        return False
    return value.nbytes <= value.untyped_storage().nbytes()


def _versions_of(tensors: Mapping[str, Any]) -> Versions:
    """What torch saves beside a state_dict, by the names of modules. Whatever else a file has there is left out."""
    facts = getattr(tensors, "_metadata", {})
    named = facts.items() if isinstance(facts, Mapping) else ()
    return {name: fact for name, fact in named if isinstance(name, str) and isinstance(fact, Mapping)}


def _content_of(content: Any) -> str:
    if isinstance(content, Mapping):
        return f"a mapping of {', '.join(map(repr, list(content)[:8])) or 'nothing'}"
    return f"a {type(content).__name__}"


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    unsupported = [line.strip() for line in lines if "Unsupported" in line or "GLOBAL" in line]
    return (unsupported or lines or [type(error).__name__])[0].rstrip(". ")
