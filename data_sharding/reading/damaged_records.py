"""Errors for records that cannot be used: which record, where it is, and what is wrong with it."""

from data_sharding.errors import CorruptRecordError, ShardingError
from data_sharding.formats.record_format import Damaged, RecordFormat
from data_sharding.reading.record_table import RecordTable
from data_sharding.storage import FileEntry, verify_unchanged
from data_sharding.storage.redaction import redacted


def verify_file_of(catalog: RecordTable, record_id: int) -> FileEntry:
    """The file of a record. Raises ChangedDataError: it is not the one that was indexed."""
    entry: FileEntry = catalog.files[catalog.file_ids[record_id]]
    if _format_of(catalog, record_id).is_stored:
        verify_unchanged(entry)
    return entry


def damaged_record(catalog: RecordTable, record_id: int, payload: bytes) -> ShardingError:
    """The error for a payload with a wrong CRC: a file that changed explains it better than damage does."""
    entry = verify_file_of(catalog, record_id)
    kind, offset = _format_of(catalog, record_id), catalog.frame_offset(record_id)
    if not kind.is_stored and isinstance(payload, Damaged):
        return _refused_item(catalog, record_id, payload.reason)
    place = f"byte offset {offset}" if kind.offset_unit == "byte" else f"{kind.offset_unit} {offset}"
    hint = payload.hint if isinstance(payload, Damaged) else ""
    return CorruptRecordError(
        f"Record {record_id}, in {redacted(entry.path)} at {place}, {'cannot be used' if hint else 'is damaged'}.",
        what_is_wrong(catalog, payload),
        f"{hint or 'restore the file from its source'}, or leave such records out (hvdtrain: --data.on-corrupt mask).",
        path=entry.path,
        offset=offset,
    )


def what_is_wrong(catalog: RecordTable, payload: bytes) -> str:
    """A sentence about a payload that is not intact."""
    if isinstance(payload, Damaged):
        return payload.reason
    return "Its framing is broken." if catalog.crcs is None else "Its data does not match its stored CRC."


def _refused_item(catalog: RecordTable, record_id: int, reason: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"Record {record_id} ({catalog.describe(record_id)}) is refused by the object: {reason.rstrip('.')}.",
        "Every record of the data is to be used.",
        "mend or remove it, or leave such records out (hvdtrain: --data.on-corrupt mask).",
        path=catalog.files[catalog.file_ids[record_id]].path,
        offset=catalog.frame_offset(record_id),
    )


def _format_of(catalog: RecordTable, record_id: int) -> RecordFormat:
    return catalog.format.of_file(catalog.file_ids[record_id])
