"""Arrays of numpy as data sets: each row of an array in an .npz or .npy file is a record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from data_sharding.errors import CorruptRecordError, MissingDataError, PlanError
from data_sharding.formats.npy_members import Member, damaged_member, find_members, unusable
from data_sharding.formats.record_format import RecordBatch, RecordFormat, RecordIndex, RowType
from data_sharding.storage import ByteSource, FileEntry, open_source
from data_sharding.storage.torn_maps import watching_maps

if TYPE_CHECKING:
    from data_sharding.catalog import Catalog


@dataclass(frozen=True)
class NumpyFormat(RecordFormat):
    """`RecordFormat` for the rows of an array, with labels from a vector of integers beside it in the .npz."""

    data: str = ""  # name of the array in the .npz; default: the only one that can be meant
    # name of the vector; default: the only vector of integers that has as many values as `data` rows, or none
    labels: str = ""
    name = "npz"
    patterns = ("*.npz", "*.npy")

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        """Only headers of arrays and labels are read; with `check_data`, all is compared with the zip's CRC-32."""
        members = find_members(path, source)
        data, labels = _choose(path, members, self.data, self.labels)
        begins = np.arange(data.rows, dtype=np.int64) * data.row_bytes + data.begin
        used = (data,) if labels is None else (data, labels)
        damaged = [member for member in used if check_data and damaged_member(source, member)]
        if damaged:
            how = "holds an array {} that does not match the zip's CRC"
            return RecordIndex.of_nothing(*(unusable(path, member.begin, how.format(member)) for member in damaged))
        return RecordIndex(
            begins,
            np.full_like(begins, data.row_bytes),
            labels=None if labels is None else _read_labels(path, source, labels),
            layout=frozenset({f"rows of {data.row_type}"} | ({f"labels {labels.name}"} if labels else set())),
        )

    def row_type(self, entry: FileEntry) -> RowType:
        source = open_source(entry)
        if source.size() != entry.size:
            raise entry.changed("was cut short")
        with watching_maps:
            members = find_members(entry.path, source)
        data, _ = _choose(entry.path, members, self.data, self.labels)
        return data.dtype, data.shape[1:]


def row_type(catalog: Catalog) -> RowType:
    """dtype and shape of a row, from the files of a catalog of this format: what `decode_rows` needs.

    Raises:
        PlanError: the catalog is of another format.
        ChangedDataError: the first file is not the one that was indexed.
    """
    if not isinstance(catalog.format, NumpyFormat):
        fact = f"The catalog's format is {catalog.format.name}."
        conflict = "Only rows of numpy arrays have a type of their own."
        raise PlanError(fact, conflict, "decode these records with the function that fits how they were written.")
    # All files are of one type, but one without records may be damaged.
    return catalog.format.row_type(catalog.files[catalog.file_ids[0]])


def decode_rows(
    records: RecordBatch, dtype: DTypeLike | None = None, shape: Sequence[int] | None = None
) -> dict[str, NDArray[Any]]:
    """Rows dtype[k, *shape] as "data", and int64[k] as "label" where there are labels.

    The default of dtype and shape is what the file says. Raises PlanError (the records have another length than such
    rows, or it is not known what they are).
    """
    kind, of_row = np.dtype(dtype), shape
    if dtype is None or of_row is None:
        stored = None if records.row_type is None else records.row_type()
        if stored is None:
            fact = f"{len(records)} records are to be decoded as rows, without dtype and shape."
            conflict = "They were not read from .npy or .npz files, which say it."
            raise PlanError(fact, conflict, "give both, as decode_rows(records, dtype, shape).")
        kind, of_row = stored[0] if dtype is None else kind, stored[1] if of_row is None else of_row
    payloads = b"".join(records.payloads)
    rows = np.empty((len(records), *of_row), kind)
    if len(payloads) != rows.nbytes:
        raise PlanError(
            f"{len(records)} records of {len(payloads)} bytes are to be decoded as rows of {kind}{list(of_row)}.",
            f"Such rows have {rows.nbytes} bytes.",
            "leave out dtype and shape, which the file says, or take them from row_type(catalog).",
        )
    rows[...] = np.frombuffer(payloads, kind).reshape(rows.shape)
    return {"data": rows} if records.labels is None else {"data": rows, "label": records.labels}


def _choose(path: str, members: list[Member], data_name: str, labels_name: str) -> tuple[Member, Member | None]:
    named = {member.name: member for member in members}
    for name in (data_name, labels_name):
        if name and name not in named:
            raise _unclear(path, members, f"has no array {name!r}")
    pairs = [
        (data, labels)
        for data in ([named[data_name]] if data_name else members)
        for labels in ([named[labels_name]] if labels_name else [None, *members])
        if data is not labels and _fits(data, labels)
    ]
    labelled = [pair for pair in pairs if pair[1] is not None]
    # An array whose labels are found is meant rather than one without; the labels themselves are not data then.
    chosen = labelled or pairs
    for member in (member for pair in chosen for member in pair if member is not None and member.compressed):
        _check_usable(path, member)
    if len(chosen) != 1:
        raise _unclear(path, members, f"has {'several arrays' if chosen else 'no array'} that could be meant")
    for member in filter(None, chosen[0]):
        _check_usable(path, member)
    return chosen[0]


def _fits(data: Member, labels: Member | None) -> bool:
    """Whether these could be data and labels; of compressed arrays nothing is known that speaks against it."""
    if labels is None:
        return data.compressed or bool(data.shape)
    if data.compressed or labels.compressed:
        return True
    return labels.dtype.kind in "iu" and labels.shape == data.shape[:1]


def _check_usable(path: str, member: Member) -> None:
    """Raise CorruptRecordError unless the rows are in the file one after the other."""
    obstacles = {
        "is compressed": (member.compressed, "write it with numpy.savez instead of numpy.savez_compressed."),
        "holds Python objects": (member.dtype.hasobject, "write numbers: objects would have to be unpickled."),
        "is kept column by column": (
            member.fortran_order and len(member.shape) > 1,
            "write numpy.ascontiguousarray of it instead.",
        ),
        "has rows of no bytes": (not member.row_bytes, "name another array with the option data."),
    }
    for how, (is_so, hint) in obstacles.items():
        if is_so:
            fact = f"The array {member} of {path}, at byte offset {member.begin}, {how}."
            conflict = "Its rows are not in the file one after the other, so none can be read by itself."
            raise CorruptRecordError(fact, conflict, hint, path=path, offset=member.begin)


def _read_labels(path: str, source: ByteSource, member: Member) -> NDArray[np.int64]:
    values = np.frombuffer(source[member.begin : member.begin + member.rows * member.row_bytes], member.dtype)
    if values.size and values.max() > np.iinfo(np.int64).max:
        raise unusable(path, member.begin, f"has a label {values.max()}, beyond 64 bits with a sign")
    return values.astype(np.int64)


def _unclear(path: str, members: list[Member], how: str) -> MissingDataError:
    fact = f"{path} {how}."
    conflict = f"It holds {', '.join(map(str, members[:20])) or 'no array'}."
    return MissingDataError(fact, conflict, "name them with the options data and labels.")
