"""Which record of a batch a decode function fails with: it is told the function's own exception."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from data_sharding.records import RecordBatch

_MOST_NAMED: Final = 3


def name_failing(
    error: Exception, decode: Callable[[RecordBatch], Any], records: RecordBatch, name: Callable[[int], str]
) -> None:
    """Say in an exception that `decode` raised for these records which of them it fails with.

    Our own errors say so in their first sentence, which is all that is shown of them, and others in a note.

    Args:
        name: names the record at a place of the batch.
    """
    found = _found(error, decode, records, name)
    fact = getattr(error, "fact", None)
    if isinstance(fact, str):
        vars(error)["fact"] = f"{found} {fact}"
    else:
        error.add_note(found)


def _found(
    error: Exception, decode: Callable[[RecordBatch], Any], records: RecordBatch, name: Callable[[int], str]
) -> str:
    first: dict[str, str] = {}
    for row in range(len(records)):
        try:
            rows = _row_types(decode(records.only(row)) if len(records) > 1 else {})
        except Exception as alone:  # whatever the user's function raises: that is what is looked for
            same = (type(alone), str(alone)) == (type(error), str(error))
            others = "" if same else f", alone with {type(alone).__name__}: {alone}"
            return f"Decoding fails {'first ' if len(records) > 1 else ''}with {name(row)}{others}."
        first = first or rows
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
