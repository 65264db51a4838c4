"""A file or folder of weights, by what is in it, whatever its name. Imports torch only for a file of torch."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Final, Literal

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import load

from hvdtrain.checkpoints.resume import followed
from hvdtrain.errors import UsageError
from hvdtrain.weights.keras_files import MEMBER, read_keras
from hvdtrain.weights.named_weights import Arrays, Framework, NamedWeights
from hvdtrain.weights.runs import is_in_checkpoint, read_run

Kind = Literal["run", "safetensors", "torch", "keras"]

_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_PICKLE: Final = b"\x80\x02"  # of protocol 2, which torch.save wrote before it wrote zip files

_READABLE: Final = (
    "give a torch state_dict (.pt, .pth), .safetensors, Keras .weights.h5 or .keras, or a run or checkpoint folder."
)


def kind_of(path: Path) -> Kind:
    """What `path` is.

    Raises:
        UsageError: it is not there, or nothing that holds weights.
    """
    try:
        if path.is_dir() or is_in_checkpoint(path) or followed(path) != path:
            return "run"
        with path.open("rb") as file:
            start = file.read(9)
        found = _kind_of_zip(path) if zipfile.is_zipfile(path) else _kind_of_bytes(start)
    except OSError as error:
        raise UsageError(
            f"The weights {path} cannot be read: {error.strerror or error}.",
            "There are none to take.",
            _READABLE,
        ) from error
    if found is None:
        raise UsageError(f"{path} is not a file of weights.", "Its first bytes match no known format.", _READABLE)
    return found


def read_weights(path: Path, kind: Kind, framework: str | None = None) -> NamedWeights:
    """The weights in `path`.

    Args:
        path: a file or folder.
        kind: what `kind_of` says of it.
        framework: of the job that asks, which the other framework must not be imported into; None: any may be.

    Raises:
        UsageError: the file is damaged, holds something else than weights, or needs the other framework.
    """
    if kind == "run":
        return read_run(path).weights()
    if kind == "safetensors":
        return _read_safetensors(path)
    if kind == "keras":
        return NamedWeights(read_keras(path), "tensorflow", str(path))
    if framework == "tensorflow":
        raise UsageError(
            f"{path} is a file of torch.",
            "Only torch reads its own format, and a TensorFlow job does not import torch.",
            f"convert it where torch is installed: hvdtrain export {path} --format safetensors.",
        )
    from hvdtrain.weights.torch_files import read_state_dict

    return NamedWeights(read_state_dict(path), "torch", str(path))


def _kind_of_bytes(start: bytes) -> Kind | None:
    if start.startswith(_HDF5):
        return "keras"
    if start[8:9] == b"{":  # safetensors: the header's length in 8 bytes, then the header, which is JSON
        return "safetensors"
    return "torch" if start.startswith(_PICKLE) else None


def _kind_of_zip(path: Path) -> Kind | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError):
        return None
    if MEMBER in names:
        return "keras"
    return "torch" if any(name.rpartition("/")[2] == "data.pkl" for name in names) else None


def _read_safetensors(path: Path) -> NamedWeights:
    content = path.read_bytes()
    try:
        arrays = _with_bfloat16(content) if b'"BF16"' in content[: 8 + _header_bytes(content)] else load(content)
    except (SafetensorError, KeyError, ValueError) as error:
        raise UsageError(
            f"{path} is not a valid safetensors file: {error}.", "Its weights are lost or unknown.", _READABLE
        ) from error
    return NamedWeights(arrays, _framework_of(content, arrays), str(path))


def _header_bytes(content: bytes) -> int:
    return int.from_bytes(content[:8], "little")


def _framework_of(content: bytes, arrays: Arrays) -> Framework:
    """By the file's metadata, where it says so, or else by the names: paths of Keras variables have slashes."""
    said = json.loads(content[8 : 8 + _header_bytes(content)]).get("__metadata__", {}).get("format")
    if said in ("pt", "keras"):
        return "torch" if said == "pt" else "tensorflow"
    return "tensorflow" if any("/" in name for name in arrays) else "torch"


def _with_bfloat16(content: bytes) -> Arrays:
    """numpy has no bfloat16: the upper half of a float32, which it therefore becomes."""
    plain: Arrays = {}
    for name, entry in deserialize(content):  # type: ignore[no-untyped-call]
        if entry["dtype"] == "BF16":
            halves = np.frombuffer(entry["data"], np.uint16).astype(np.uint32) << 16
            plain[name] = halves.view(np.float32).reshape(entry["shape"])
        else:
            dtype = np.dtype({"BOOL": "?"}.get(entry["dtype"]) or _numpy_name(entry["dtype"]))
            plain[name] = np.frombuffer(entry["data"], dtype).reshape(entry["shape"])
    return plain


def _numpy_name(dtype: str) -> str:
    """F32 → f4, I64 → i8, U8 → u1."""
    return f"{dtype[0].lower()}{int(dtype[1:]) // 8}"
