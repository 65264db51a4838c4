"""From record ids to decoded arrays: the work that a background thread or process does for one batch."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding.errors import PlanError
from data_sharding.loading.record_reader import RecordReader
from data_sharding.records import RecordBatch
from data_sharding.sample_random import SampleRandom

Decode = Callable[[RecordBatch], dict[str, NDArray[Any]]]


class Decoded(NamedTuple):
    """k decoded records: arrays of k rows by name, and bool[k], which of the records were sound."""

    features: dict[str, NDArray[Any]]
    intact: NDArray[np.bool_]


def read_and_decode(
    reader: RecordReader, decode: Decode, ids: NDArray[np.int64], random: SampleRandom | None
) -> Decoded:
    """Read records ids int64[k] and decode them.

    Raises:
        PlanError: `decode` returned no mapping of arrays, or another number of rows.
        ShardingError: as `RecordReader.load`; and whatever `decode` raises.
    """
    return decoded(decode, reader.load(ids, random))


def decoded(decode: Decode, records: RecordBatch) -> Decoded:
    """Decode k records. Errors as `read_and_decode`."""
    return Decoded(decode_rows(decode, records), records.intact)


def decode_rows(decode: Decode, records: RecordBatch) -> dict[str, NDArray[Any]]:
    """What `decode` makes of k records: arrays of k rows by name. Errors as `read_and_decode`."""
    try:
        features = decode(records)
    except StopIteration as error:
        # It would pass for the end of the epoch in whatever iterates over the batches.
        raise RuntimeError("the decode function raised StopIteration") from error
    _check_rows(decode, features, len(records))
    return features


def _check_rows(decode: Decode, features: Any, rows: int) -> None:
    if not isinstance(features, Mapping):
        raise _no_arrays(decode, f"a {type(features).__name__}", rows)
    for name, array in features.items():
        if not isinstance(name, str):
            raise _no_arrays(decode, f"a name of type {type(name).__name__}", rows)
        if not isinstance(array, np.ndarray):
            raise _no_arrays(decode, f"a {type(array).__name__} for {name!r}", rows)
        if array.shape[:1] != (rows,):
            raise PlanError(
                f"The decode function returned shape {array.shape} for {name!r} from {rows} records.",
                "The first dimension must be the records, or weights would fall on the wrong ones.",
                "return one row for each record.",
            )


def name_of(decode: Decode) -> str:
    """How messages call a decode function."""
    return str(getattr(decode, "__qualname__", type(decode).__name__))


def _no_arrays(decode: Decode, what: str, rows: int) -> PlanError:
    return PlanError(
        f"The decode function {name_of(decode)} returned {what}.",
        f"It must return a mapping of names to numpy arrays of {rows} rows, one for each record.",
        'return for example {"image": images, "label": labels}; numpy.asarray makes an array of lists and of tensors.',
    )
