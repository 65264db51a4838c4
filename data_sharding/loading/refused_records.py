"""Records that a decode function refuses by `BadRecord`: found one by one, and replaced in their batch or raised."""

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from data_sharding.errors import BadRecord, CorruptRecordError
from data_sharding.formats.record_format import RecordBatch
from data_sharding.reading.record_reader import RecordReader
from data_sharding.storage.redaction import redacted

_NEAR: Final = 64


def without_refused(reader: RecordReader, decode: Callable[[RecordBatch], Any], records: RecordBatch) -> RecordBatch:
    """The batch with another record in the place of each that `decode` refuses, marked as not intact.

    It comes with its own number, label and source, since `decode` may refuse by these.

    Raises CorruptRecordError: the reader's `on_corrupt` is "raise", or nothing near is accepted.
    """
    reasons = {row: reason for row in range(len(records)) if (reason := _refusal(decode, records.only(row)))}
    if not reasons:
        fact = f"The decode function refuses {len(records)} records together, and none of them alone."
        raise CorruptRecordError(fact, "BadRecord refuses a record.", "raise it for a record of its own.", path="")
    first = min(reasons)
    if reader.on_corrupt == "raise":
        raise _refused(reader, int(records.ids[first]), reasons[first])
    accepted = next((row for row in range(len(records)) if row not in reasons), None)
    places, intact = np.arange(len(records)), records.intact.copy()
    places[list(reasons)], intact[list(reasons)] = accepted or 0, False
    # Where none is accepted, all are replaced.
    source = _neighbour(reader, decode, records, first, reasons) if accepted is None else records
    refused = {int(records.ids[row]): reason for row, reason in reasons.items()}
    taken = source.rows(places)
    return dataclasses.replace(taken, intact=intact, longest=records.longest, reasons={**records.reasons, **refused})


def _refusal(decode: Callable[[RecordBatch], Any], record: RecordBatch) -> str | None:
    try:
        decode(record)
    except BadRecord as refusal:
        return refusal.reason or "no reason was given"
    return None


def _neighbour(
    reader: RecordReader, decode: Callable[[RecordBatch], Any], records: RecordBatch, row: int, reasons: dict[int, str]
) -> RecordBatch:
    refused = int(records.ids[row])
    for distance in range(1, min(_NEAR, len(reader.catalog))):
        near = np.array([(refused + distance) % len(reader.catalog)])
        found = reader.load(near, None if records.random is None else records.random.of_records(near))
        if _refusal(decode, found) is None:
            return found
    raise _refused(reader, refused, f"{reasons[row]}; and so are the {_NEAR} records after it")


def _refused(reader: RecordReader, record_id: int, reason: str) -> CorruptRecordError:
    catalog = reader.catalog
    return CorruptRecordError(
        f"Record {record_id} ({catalog.describe(record_id)}) is refused by the decode function: {reason.rstrip('.')}.",
        "Every record of the data is to be used.",
        "mend or remove it, or leave such records out (hvdtrain: --data.on-corrupt mask).",
        path=redacted(catalog.files[catalog.file_ids[record_id]].path),
        offset=catalog.frame_offset(record_id),
    )
