"""From record ids to decoded arrays: the work that a background thread or process does for one batch."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import BadRecord, PlanError
from data_sharding.formats.record_format import RecordBatch
from data_sharding.loading.refused_records import without_refused
from data_sharding.objects.arrays import as_array
from data_sharding.reading.record_reader import RecordReader
from data_sharding.sample_random import SampleRandom

_MOST_NAMED: Final = 3

Decode = Callable[[RecordBatch], dict[str, NDArray[Any]]]


class Decoded(NamedTuple):
    """k decoded records: arrays of k rows by name, and bool[k], which of the records were sound; what was wrong with
    the others, by their ids."""

    features: dict[str, NDArray[Any]]
    intact: NDArray[np.bool_]
    reasons: Mapping[int, str] = {}


def read_and_decode(
    reader: RecordReader,
    decode: Decode,
    ids: NDArray[np.int64],
    random: SampleRandom | None,
    longest: int | None = None,
    ranges: NDArray[np.int64] | None = None,
) -> Decoded:
    """Read records ids int64[k], as `Wanted` says, and decode them. Errors as `decode_spans`."""
    spans = None if ranges is None else reader.spans(ids, ranges)
    return decode_spans(reader, decode, ids, random, longest, spans)


def decode_spans(
    reader: RecordReader,
    decode: Decode,
    ids: NDArray[np.int64],
    random: SampleRandom | None,
    longest: int | None,
    spans: list[bytes] | None,
) -> Decoded:
    """Decode records ids int64[k] from their bytes as they are in the file; None: read them.

    Raises:
        PlanError: `decode` returned no mapping of arrays, or another number of rows.
        ShardingError: as `RecordReader.load`; and whatever `decode` raises, with the name of the record.
    """
    return decode_named(reader, decode, reader.load(ids, random, longest, spans))


def decode_named(reader: RecordReader, decode: Decode, records: RecordBatch) -> Decoded:
    """As `decode_sound`; an exception of `decode` names the record."""

    def name(row: int) -> str:
        return f"record {records.ids[row]} ({reader.catalog.describe(int(records.ids[row]))})"

    return decode_sound(reader, decode, records, name)


def decode_sound(
    reader: RecordReader, decode: Decode, records: RecordBatch, name: Callable[[int], str] | None = None
) -> Decoded:
    """As `decode_rows`; records that `decode` refuses by `BadRecord` are treated as damaged, as the reader says."""
    try:
        return Decoded(decode_rows(decode, records, name), records.intact, records.reasons)
    except BadRecord:
        sound = without_refused(reader, lambda some: _call(decode, some), records)
    return Decoded(decode_rows(decode, sound, name), sound.intact, sound.reasons)


def decode_rows(
    decode: Decode, records: RecordBatch, name: Callable[[int], str] | None = None
) -> dict[str, NDArray[Any]]:
    """What `decode` makes of k records: arrays of k rows by name.

    If `decode` raises, the records are decoded again, one by one, and `name` names the one that fails. Errors as
    `read_and_decode`.
    """
    try:
        features = _call(decode, records)
    except Exception as error:
        if name is not None and not isinstance(
            error, PlanError | BadRecord
        ):  # those say what is wrong with the function
            culprit = _failing(error, decode, records, name)
            # Our own errors say so in their first sentence, which is all that is shown of them, and others in a note.
            if isinstance(fact := getattr(error, "fact", None), str):
                vars(error)["fact"] = f"{culprit} {fact}"
            else:
                error.add_note(culprit)
        raise
    _check_rows(decode, features, len(records))
    return features


def _call(decode: Decode, records: RecordBatch) -> dict[str, NDArray[Any]]:
    try:
        return _without_tensors(decode(records))
    except StopIteration as error:
        # It would pass for the end of the epoch in whatever iterates over the batches.
        raise RuntimeError("the decode function raised StopIteration") from error


def _without_tensors(features: dict[str, Any]) -> dict[str, Any]:
    """The same, with arrays in the place of tensors of torch or TensorFlow, which share their memory if they can."""
    if not isinstance(features, Mapping) or all(isinstance(value, np.ndarray) for value in features.values()):
        return features
    return {
        name: as_array(value) if hasattr(value, "detach") or hasattr(value, "numpy") else value
        for name, value in features.items()
    }


def _failing(error: Exception, decode: Decode, records: RecordBatch, name: Callable[[int], str]) -> str:
    """Which of these records `decode` fails with, as it did with `error` for all of them."""
    first: dict[str, str] = {}
    for row in range(len(records)):
        try:
            rows = _row_types(_call(decode, records.only(row)) if len(records) > 1 else {})
        except Exception as alone:  # whatever the user's function raises: that is what is looked for
            same = (type(alone), str(alone)) == (type(error), str(error))
            others = "." if same else f", alone with {type(alone).__name__}: {getattr(alone, 'fact', alone)}"
            return f"Decoding fails {'first ' if len(records) > 1 else ''}with {name(row)}{others}"
        first = first or rows
        if odd := sorted(rows.keys() ^ first.keys()):
            has, lacks = (row, 0) if odd[0] in rows else (0, row)
            return f"Decoding gives {odd[0]!r} for {name(has)}, and not for {name(lacks)}."
        other = next((key for key, kind in rows.items() if first.get(key, kind) != kind), None)
        if other is not None:
            return f"Decoding gives {other!r} of {rows[other]} for {name(row)}, and of {first[other]} for {name(0)}."
    named = ", ".join(name(row) for row in range(min(len(records), _MOST_NAMED)))
    more = f" and {len(records) - _MOST_NAMED} more" if len(records) > _MOST_NAMED else ""
    return f"Decoding fails with {named}{more}{' together, with none of them alone' if len(records) > 1 else ''}."


def _row_types(features: Any) -> dict[str, str]:
    """dtype and shape of a row of each array, for people."""
    arrays = features.items() if isinstance(features, Mapping) else ()
    return {str(key): f"{a.dtype}{list(a.shape[1:])}" for key, a in arrays if isinstance(a, np.ndarray)}


def _check_rows(decode: Decode, features: Any, rows: int) -> None:
    if not isinstance(features, Mapping):
        raise _no_arrays(decode, f"a {type(features).__name__}", rows)
    for name, array in features.items():
        if not isinstance(name, str):
            raise _no_arrays(decode, f"a name of type {type(name).__name__}", rows)
        if not isinstance(array, np.ndarray):
            raise _no_arrays(decode, f"a {type(array).__name__} for {name!r}", rows)
        if array.shape[:1] != (rows,):
            fact = (
                f"The decode function {name_of(decode)} returned shape {array.shape} for {name!r} from {rows} records."
            )
            conflict = "The first dimension must be the records, or weights would fall on the wrong ones."
            raise PlanError(fact, conflict, "return one row for each record.")


def name_of(decode: Decode) -> str:
    """How messages call a decode function."""
    decode = inspect.unwrap(decode)
    return str(getattr(decode, "__qualname__", type(decode).__name__))


def _no_arrays(decode: Decode, what: str, rows: int) -> PlanError:
    return PlanError(
        f"The decode function {name_of(decode)} returned {what}.",
        f"It must return a mapping of names to numpy arrays of {rows} rows, one for each record.",
        'return for example {"image": images, "label": labels}; numpy.asarray makes an array of lists.',
    )
