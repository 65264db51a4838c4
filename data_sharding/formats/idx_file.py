"""The index that others keep of a TFRecord file: a text file with one line `offset size` a record.

Offset and size, in bytes, are those of the whole frame: header, payload and checksums. NVIDIA DALI's `tfrecord2idx`
and the `tfrecord` package write such files and need them. Source: tools/tfrecord2idx in github.com/NVIDIA/DALI.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from data_sharding.atomic import atomic_file
from data_sharding.errors import CatalogError, MissingDataError, PlanError
from data_sharding.storage import is_remote

if TYPE_CHECKING:
    from data_sharding.catalog import Catalog

_SUFFIX: Final = ".idx"
_FOOTER_BYTES: Final = 4


def idx_path(data_path: str) -> str | None:
    """The index kept beside a local data file: `a.tfrecord.idx` or `a.idx`; None where there is none."""
    if is_remote(data_path):
        return None
    candidates = (data_path + _SUFFIX, os.path.splitext(data_path)[0] + _SUFFIX)
    return next((path for path in candidates if os.path.isfile(path)), None)


def read_lines(path: str | Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Offset and size of each frame, both int64[n]; `TFRecordFormat` compares them with the data.

    Raises MissingDataError or CatalogError.
    """
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        fact = f"{path} cannot be opened: {error.strerror}."
        raise MissingDataError(fact, "The index cannot be read.", "check the path.") from error
    if not text.strip():
        raise _no_index(path, "it is empty")
    try:
        numbers = np.loadtxt(io.BytesIO(text), np.int64, comments=None, ndmin=2)
    except (ValueError, OverflowError) as error:
        raise _no_index(path, str(error)) from error
    if numbers.shape[1] != 2 or (numbers < 0).any():
        raise _no_index(path, "not every line holds two numbers")
    return numbers[:, 0], numbers[:, 1]


def write_idx(catalog: Catalog, folder: str | Path | None = None) -> list[Path]:
    """Write an index for each file of a TFRecord catalog, named as the file with `.idx` appended; return their paths.

    They are put beside the data files, or into `folder`, which is made if it is missing.

    Raises PlanError.
    """
    if catalog.format.name != "tfrecord":
        fact = f"The catalog is of format {catalog.format.name}."
        raise PlanError(fact, "Such an index exists for TFRecord files only.", "save the catalog itself.")
    paths, header = _targets(catalog, folder), catalog.format.header_bytes
    ends = np.searchsorted(catalog.file_ids, np.arange(len(paths) + 1))
    for number, path in enumerate(paths):
        frames = catalog.offsets[ends[number] : ends[number + 1]] - header
        sizes = catalog.lengths[ends[number] : ends[number + 1]] + header + _FOOTER_BYTES
        if (covered := int(sizes.sum())) != (file := catalog.files[number]).size:
            raise PlanError(
                f"The catalog knows {covered} of the {file.size} bytes of {file.path}.",
                "The file is damaged, and its index would hide that.",
                "restore the file, and index it again.",
            )
        lines = "".join(f"{frame} {size}\n" for frame, size in zip(frames.tolist(), sizes.tolist(), strict=True))
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as target:
            target.write(lines.encode())
    return paths


def _targets(catalog: Catalog, folder: str | Path | None) -> list[Path]:
    named: dict[Path, str] = {}
    for file in catalog.files:
        if folder is None and is_remote(file.path):
            raise PlanError(f"{file.path} is not on this machine.", "No index can be put beside it.", "name a folder.")
        beside = os.path.dirname(file.path) if folder is None else folder
        path = Path(beside) / (os.path.basename(file.path) + _SUFFIX)
        if path in named:
            fact = f"{file.path} and {named[path]} have one name."
            conflict = f"Both indices would be {path}."
            raise PlanError(fact, conflict, "write them beside the files, or index the folders separately.")
        named[path] = file.path
    return list(named)


def _no_index(path: str | Path, reason: str) -> CatalogError:
    fact = f"{path} is not an index of a TFRecord file: {reason}."
    return CatalogError(fact, "It names no records.", "write it again.")


def other_file(path: str | Path, data_path: str, reason: str) -> CatalogError:
    """The error for an index that does not describe the file beside it."""
    fact = f"{path} does not describe {data_path}: {reason}."
    return CatalogError(fact, "Its records would be read from wrong places.", "remove the index, or write it again.")
