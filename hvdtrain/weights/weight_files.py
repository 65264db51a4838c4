"""A file of weights, or a run or checkpoint folder, detected by its content, not by its name.

Weights may be in several files, as Hugging Face's libraries write them: shards, and an index of what is in which.

model.safetensors.index.json        {"metadata": {...}, "weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}
pytorch_model.bin.index.json        the same with files of torch

Imports torch only for a file of torch.
"""

import json
import shlex
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from hvdtrain.checkpoints.format import Checkpoint
from hvdtrain.checkpoints.resume import checkpoint_at, followed
from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import some
from hvdtrain.named_arrays import as_numbers
from hvdtrain.weights.keras_files import MEMBER, read_keras
from hvdtrain.weights.named_weights import Arrays, Framework, NamedWeights

Kind = Literal["run", "shards", "safetensors", "torch", "keras"]

_HDF5: Final = b"\x89HDF\r\n\x1a\n"
_PICKLE: Final = b"\x80\x02"  # of protocol 2, which torch.save wrote before it wrote zip files

_READABLE: Final = (
    "give a torch state_dict (.pt, .pth), .safetensors, an index of such files (.index.json), Keras .weights.h5 or "
    ".keras, or a run or checkpoint folder."
)


_MAP: Final = "weight_map"
_PATTERNS: Final = ("*.safetensors.index.json", "*.bin.index.json", "model.safetensors", "pytorch_model.bin")
"""The index of a folder's shards, or its single file of weights: what it is read by; the first that is there."""
_MOST_BYTES: Final = 2**28
_WHOLE: Final = "copy the whole folder again, with all files that the index names."


def kind_of(path: Path) -> Kind:
    """What `path` is. Raises `UsageError` if it is not there, or holds no weights."""
    try:
        path = weights_file(path)
        if path.is_dir() or is_in_checkpoint(path) or followed(path) != path:
            return "run"
        kind = _kind_of_zip(path) if zipfile.is_zipfile(path) else _kind_of_bytes(path)
    except OSError as error:
        raise UsageError(
            f"The weights {path} cannot be read: {error.strerror or error}.", "There are none to take.", _READABLE
        ) from error
    if kind is None:
        raise UsageError(f"{path} is not a file of weights.", "Its content matches no known format.", _READABLE)
    return kind


def read_weights(path: Path, kind: Kind, framework: str | None = None) -> NamedWeights:
    """The weights in `path`.

    Args:
        kind: what `kind_of` says of it.
        framework: of the job that asks, which the other framework must not be imported into; None: any may be.

    Raises `UsageError`: the file is damaged, holds something else than weights, or needs the other framework.
    """
    if kind == "run":
        return weights_of_run(read_run(path), path)
    path = weights_file(path)
    if kind == "shards":
        return _read_shards(path, framework)
    if kind == "safetensors":
        return _read_safetensors(path)
    if kind == "keras":
        return NamedWeights(read_keras(path), "tensorflow", str(path))
    if framework == "tensorflow":
        raise UsageError(
            f"{path} is a file of torch.",
            "Only torch reads its own format, and a TensorFlow job does not import torch.",
            f"convert it where torch is installed: hvdtrain export {shlex.quote(str(path))} --format safetensors.",
        )
    from hvdtrain.weights.torch_files import read_state_dict

    arrays, versions = read_state_dict(path)
    return NamedWeights(arrays, "torch", str(path), versions)


def read_run(path: Path, given_as: str = "--init-weights") -> Checkpoint:
    """The newest sound checkpoint of a run folder, or the checkpoint that `path` is, or a file in one.

    Raises `UsageError`: there is none.
    """
    return checkpoint_at(path.parent if is_in_checkpoint(path) else path, given_as)


def weights_of_run(run: Checkpoint, path: Path, averaged: bool = False) -> NamedWeights:
    """The model's weights; with `averaged`, their exponential moving averages where the run kept them.

    Raises `UsageError`: the run kept none.
    """
    arrays = _part(run, "model/")
    if averaged:
        averages = _part(run, "ema/")
        if not averages:
            raise UsageError(
                f"{path} holds no averages of its weights.",
                "They were asked for, by --ema or averaged=True.",
                "leave that out, or train with --ema-decay.",
            )
        arrays |= averages | _of_other_names(arrays, averages)  # buffers, as BatchNorm's statistics, have none
    framework: Framework = "torch" if run.about["framework"] == "torch" else "tensorflow"
    return NamedWeights(arrays, framework, f"{path} (step {run.position.step})")


def _of_other_names(weights: Arrays, averages: Arrays) -> Arrays:
    """Averages of tied weights under their further names, of which checkpoints have the first: the weights are equal.
    Constant arrays may be equal by chance."""
    others = {name: array for name, array in weights.items() if name not in averages and not _is_constant(array)}
    kinds = {_kind(array) for array in others.values()}
    firsts = [name for name in averages if name in weights and _kind(weights[name]) in kinds]
    found = {
        name: next((first for first in firsts if np.array_equal(weights[first], array)), None)
        for name, array in others.items()
    }
    return {name: averages[first] for name, first in found.items() if first is not None}


def _kind(array: NDArray[Any]) -> tuple[str, tuple[int, ...]]:
    return array.dtype.str, array.shape


def _is_constant(array: NDArray[Any]) -> bool:
    return bool((array == array.flat[0]).all()) if array.size else True


def _part(run: Checkpoint, prefix: str) -> Arrays:
    arrays = {name.removeprefix(prefix): array for name, array in run.state.items() if name.startswith(prefix)}
    return {name: as_numbers(array) for name, array in arrays.items() if array.dtype.kind != "S"}


def weights_file(path: Path) -> Path:
    """The file by which a folder of another program is read; any other path as it is."""
    if not path.is_dir() or (path / "manifest.json").exists() or (path / "checkpoints").exists():
        return path
    return next((file for pattern in _PATTERNS for file in sorted(path.glob(pattern)) if file.is_file()), path)


def is_in_checkpoint(path: Path) -> bool:
    """Whether it is one of a checkpoint's own files, whose names are not those of the weights alone."""
    return path.is_file() and path.suffix == ".safetensors" and (path.parent / "manifest.json").is_file()


def _kind_of_bytes(path: Path) -> Kind | None:
    with path.open("rb") as file:
        start = file.read(9)
    if start.startswith(_HDF5):
        return "keras"
    # safetensors: the header's length in 8 bytes, then the header, which is JSON. Eight letters are a greater number.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < path.stat().st_size:
        return "safetensors"
    if start.startswith(_PICKLE):
        return "torch"
    return "shards" if start.lstrip().startswith(b"{") and _is_index(path) else None


def _kind_of_zip(path: Path) -> Kind | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError):
        return None
    if MEMBER in names:
        return "keras"
    return "torch" if any(name.rpartition("/")[2] == "data.pkl" for name in names) else None


def _is_index(path: Path) -> bool:
    """Whether a file is an index of shards, by its content."""
    return path.stat().st_size < _MOST_BYTES and _map_in(path.read_bytes()) is not None


def _read_shards(index: Path, framework: str | None) -> NamedWeights:
    """The weights in all shards that an index names.

    Raises `UsageError`: a shard is missing or lies elsewhere, or does not hold what the index says.
    """
    files = _map_in(index.read_bytes())
    if not files:
        raise UsageError(f"{index} lists no weights.", "There are none to take.", _WHOLE)
    for file in files.values():
        if not isinstance(file, str) or file in ("", ".", "..") or Path(file).name != file:
            raise UsageError(
                f"{index} names {file!r} as a shard.", "That is not the name of a file in the same folder.", _WHOLE
            )
    for file in files.values():
        if not index.with_name(file).exists():
            raise UsageError(
                f"The index at {index} names {file}.",
                f"{file}, a shard of the weights, is missing: it is not in the folder of the index.",
                "copy all shards beside the index.",
            )
    shards = [_read_shard(index.with_name(file), framework) for file in dict.fromkeys(files.values())]
    whole = NamedWeights(
        {name: array for shard in shards for name, array in shard.arrays.items()},
        shards[0].framework,
        str(index),
        {name: facts for shard in shards for name, facts in (shard.versions or {}).items()},
    )
    missing = [name for name in files if name not in whole.arrays]
    if missing:
        raise UsageError(f"{index} lists {some(missing)}.", "None of its shards holds that.", _WHOLE)
    return whole


def _map_in(content: bytes) -> Mapping[str, Any] | None:
    try:
        index = json.loads(content)
    except ValueError:
        return None
    files = index.get(_MAP) if isinstance(index, dict) else None
    return files if isinstance(files, dict) else None


def _read_shard(path: Path, framework: str | None) -> NamedWeights:
    kind = kind_of(path)
    if kind not in ("safetensors", "torch"):
        raise UsageError(f"{path} is named as a shard.", "It is not a file of safetensors or of torch.", _READABLE)
    return read_weights(path, kind, framework)


def _read_safetensors(path: Path) -> NamedWeights:
    content = path.read_bytes()
    try:
        arrays = {name: _array(**entry) for name, entry in deserialize(content)}  # type: ignore[no-untyped-call]
    except (SafetensorError, KeyError, ValueError) as error:
        raise UsageError(
            f"{path} is not a valid safetensors file: {error}.", "Its weights are lost or unknown.", _READABLE
        ) from error
    return NamedWeights(arrays, _framework_of(content, arrays), str(path), versions={})


def _array(data: bytes, dtype: str, shape: list[int]) -> NDArray[Any]:
    """numpy has no bfloat16: it is the upper half of a float32, which it therefore becomes."""
    if dtype == "BF16":
        halves = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return halves.view(np.float32).reshape(shape)
    letter, bits = dtype[0].lower(), dtype[1:]  # such as F32 or I64
    return np.frombuffer(data, "?" if dtype == "BOOL" else f"{letter}{int(bits) // 8}").reshape(shape)


def _framework_of(content: bytes, arrays: Arrays) -> Framework:
    """Tell the framework by the file's metadata, or else by the names: paths of Keras variables have slashes."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    said = header.get("__metadata__", {}).get("format")
    if said in ("pt", "keras"):
        return "torch" if said == "pt" else "tensorflow"
    return "tensorflow" if any("/" in name for name in arrays) else "torch"
