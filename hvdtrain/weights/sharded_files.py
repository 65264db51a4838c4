"""Weights in several files, as Hugging Face's libraries write them: shards, and an index that says what is in which.

model.safetensors.index.json        {"metadata": {...}, "weight_map": {"fc.weight": "model-00001-of-00002.safetensors"}}
pytorch_model.bin.index.json        the same with files of torch
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from hvdtrain.errors import UsageError
from hvdtrain.models.exchange import some
from hvdtrain.weights.named_weights import NamedWeights

_MAP: Final = "weight_map"
_PATTERNS: Final = ("*.safetensors.index.json", "*.bin.index.json", "model.safetensors", "pytorch_model.bin")
"""What a folder is read by; the first that is there."""
_MOST_BYTES: Final = 2**28
_WHOLE: Final = "copy the whole folder again, with all files that the index names."


def file_in(folder: Path) -> Path | None:
    """The index of a folder's shards, or its single file of weights; None where there is none."""
    return next((path for pattern in _PATTERNS for path in sorted(folder.glob(pattern)) if path.is_file()), None)


def is_index(path: Path) -> bool:
    """Whether a file is an index of shards, by its content."""
    return path.stat().st_size < _MOST_BYTES and _map_in(path.read_bytes()) is not None


def read_shards(index: Path, read: Callable[[Path], NamedWeights]) -> NamedWeights:
    """The weights in all shards that an index names.

    Raises `UsageError`: a shard is missing or lies elsewhere, or does not hold what the index says. Errors of `read`.
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
    shards = [read(index.with_name(file)) for file in dict.fromkeys(files.values())]
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
