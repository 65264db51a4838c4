"""The formats in which predictions are written, each from parts that are read one after the other."""

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from hvdtrain.errors import UsageError

Columns = Mapping[str, NDArray[Any]]
"""Name → array [n, ...], one row a record."""

Write = Callable[[BinaryIO, Callable[[], Iterator[Columns]]], None]
"""Write into an open file from parts, in their order; the iterator may be opened more than once."""


def write_jsonl(file: BinaryIO, parts: Callable[[], Iterator[Columns]]) -> None:
    """One JSON object a record and line. NaN and infinity become null: JSON has neither."""
    for columns in parts():
        lists = {name: _finite(array).tolist() for name, array in columns.items()}
        for row in zip(*lists.values(), strict=True):
            file.write((json.dumps(dict(zip(lists, row, strict=True)), allow_nan=False) + "\n").encode())


def _finite(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array
    shown = array.astype(object)
    shown[~np.isfinite(array)] = None
    return shown


def write_npz(file: BinaryIO, parts: Callable[[], Iterator[Columns]]) -> None:
    """One array for each column, as `numpy.load` reads them; a column of one part is in memory at a time."""
    shapes = _whole_shapes(parts())
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, (dtype, shape) in shapes.items():
            header = io.BytesIO()
            described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(header, described)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(header.getvalue())
                for columns in parts():
                    member.write(np.ascontiguousarray(columns[name], dtype).tobytes())


def _whole_shapes(parts: Iterator[Columns]) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Of each column over all parts; texts get the length of the longest one."""
    whole: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
    for columns in parts:
        for name, array in columns.items():
            dtype, shape = whole.get(name, (array.dtype, (0, *array.shape[1:])))
            common = np.promote_types(dtype, array.dtype)
            if common.kind == "f" and "f" not in (dtype.kind, array.dtype.kind):  # uint64 with signed numbers
                raise UsageError(
                    f"The predictions {name} are {dtype} for some records, and {array.dtype} for others.",
                    "No type of whole numbers holds both.",
                    "let the task's predict() return numbers of one type.",
                )
            whole[name] = common, (shape[0] + len(array), *shape[1:])
    return whole


def write_parquet(file: BinaryIO, parts: Callable[[], Iterator[Columns]]) -> None:
    """A column each, of lists where a record has several values; a row group for each part. The type of a column holds
    the values of all parts, as in `write_npz`."""
    import pyarrow
    from pyarrow import parquet

    writer, whole = None, _whole_shapes(parts())
    try:
        for columns in parts():
            table = pyarrow.table({name: _arrow(array.astype(whole[name][0])) for name, array in columns.items()})
            writer = parquet.ParquetWriter(file, table.schema) if writer is None else writer
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _arrow(array: NDArray[Any]) -> Any:
    import pyarrow

    flat, is_text = array.reshape(-1), array.dtype.kind == "U"
    values = pyarrow.array(flat.tolist(), pyarrow.string()) if is_text else pyarrow.array(flat)
    for length in reversed(array.shape[1:]):
        values = pyarrow.FixedSizeListArray.from_arrays(values, length)
    return values


FORMATS: Final[Mapping[str, Write]] = {".npz": write_npz, ".jsonl": write_jsonl, ".parquet": write_parquet}


def format_of(path: Path) -> Write:
    """By the suffix. Raises UsageError: it is not known, or what writes it is not installed."""
    if path.suffix not in FORMATS:
        raise UsageError(
            f"--output is {path}.",
            "Its suffix says in which format predictions are written.",
            f"give a name that ends in {', '.join(FORMATS)}.",
        )
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(
            f"--output is {path}, and pyarrow is not installed.",
            "hvdtrain writes Parquet by it.",
            "run `pip install 'hvdtrain[parquet]'`, or choose .npz or .jsonl.",
        )
    return FORMATS[path.suffix]


def joined(rows: Sequence[Columns]) -> dict[str, NDArray[Any]]:
    """Rows of all ranks in the order of their "id", int64 [n]. Raises UsageError: they have other columns."""
    for columns in rows:
        require_same_columns(shapes_of(rows[0]), shapes_of(columns))
    whole = {name: np.concatenate([columns[name] for columns in rows]) for name in rows[0]}
    order = np.argsort(whole["id"], kind="stable")
    return {name: array[order] for name, array in whole.items()}


def shapes_of(columns: Columns) -> dict[str, tuple[int, ...]]:
    """Name → shape of one record's value."""
    return {name: array.shape[1:] for name, array in columns.items()}


def require_same_columns(first: Mapping[str, tuple[int, ...]], other: Mapping[str, tuple[int, ...]]) -> None:
    """Raise UsageError unless the predictions of other records have the same columns as those of the first ones."""
    if other != first:
        raise UsageError(
            f"For some records the predictions are {_shown(first)}, and for others {_shown(other)}.",
            "They are the columns of one table.",
            "let the task's predict() return the same names for each batch, and values of one shape.",
        )


def _shown(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape) or ''}".rstrip() for name, shape in shapes.items())
