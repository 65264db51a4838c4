"""Which columns of a table make a record, and which one is its label."""

import re
from typing import Any, Final, NamedTuple

from data_sharding.errors import CorruptRecordError, ExampleError, MissingDataError

_BINARY: Final = re.compile(r"(large_)?binary$|fixed_size_binary\[")
_INTEGER: Final = re.compile(r"u?int(8|16|32|64)$")
_FEATURE: Final = re.compile(rf"{_BINARY.pattern}|{_INTEGER.pattern}|(bool|halffloat|float|double|(large_)?string)$")
_HOLDS_VALUES: Final = re.compile(r"((large_|fixed_size_)?list|dictionary)<")


class Columns(NamedTuple):
    """Names of the columns to use; a field of a struct is called "column.field"."""

    data: str  # the column of byte strings that are the payloads; empty: payloads are Examples of `features`
    features: tuple[str, ...]  # the columns of an Example
    label: str  # the column of labels; empty: none

    @property
    def payload(self) -> list[str]:
        """What has to be read for payloads."""
        return [self.data] if self.data else list(self.features)

    def layout(self, schema: Any) -> frozenset[str]:
        """The columns with their types. What Arrow alone tells apart (large types, dictionaries) is one type here."""
        types = [(field.name, field.type) for top in schema for field in top.flatten()]
        values = {name: kind.value_type if str(kind).startswith("dictionary<") else kind for name, kind in types}
        kinds = {name: str(kind).replace("large_", "") for name, kind in values.items()}
        used = {f"{name} {kinds[name]}" for name in self.payload}
        return frozenset(used | ({f"label {self.label} {kinds[self.label]}"} if self.label else set()))


def choose_columns(path: str, schema: Any, data: str, label: str) -> Columns:
    """The columns for a pyarrow schema and a user's choice; an empty name is none. See `ParquetFormat`.

    Raises MissingDataError, CorruptRecordError or ExampleError.
    """
    kinds = {field.name: field.type for top in schema for field in top.flatten()}
    if len(kinds) != sum(len(top.flatten()) for top in schema):
        fact = f"{path}, a table by byte offset 0, has two columns of the same name."
        conflict = f"They cannot be told apart among {', '.join(kinds)}."
        raise CorruptRecordError(fact, conflict, "write it again with distinct names.", path=path)
    binary = [name for name, kind in kinds.items() if _BINARY.match(str(kind))]
    integers = [name for name, kind in kinds.items() if _INTEGER.match(str(kind))]
    if data and data not in binary:
        raise _no_column(path, kinds, data, "byte strings")
    if label and label not in integers:
        raise _no_column(path, kinds, label, "integers")
    if not data and not label and len(kinds) == 2 and len(binary) == len(integers) == 1:
        label = integers[0]
    features = tuple(name for name in kinds if name != label)
    if not features:
        raise _no_column(path, kinds, "", "data")
    if data or (len(features) == 1 and binary):
        return Columns(data or features[0], (), label)
    for name in features:
        kind = kinds[name]
        if not _FEATURE.match(str(kind.value_type if _HOLDS_VALUES.match(str(kind)) else kind)):
            raise ExampleError(
                f"The column {name!r} of {path} has the type {kind}.",
                "A row of several columns becomes a tf.train.Example, which holds bytes, integers and floats only.",
                "name a column of byte strings with the option data, or write the table without this column.",
            )
    return Columns("", features, label)


def float64_columns(schema: Any) -> frozenset[str]:
    """Columns of 64-bit floats, or of lists of them."""
    kinds = {field.name: field.type for field in schema}
    inner = {name: kind.value_type if _HOLDS_VALUES.match(str(kind)) else kind for name, kind in kinds.items()}
    return frozenset(name for name, kind in inner.items() if str(kind) == "double")


def _no_column(path: str, kinds: dict[str, Any], name: str, wanted: str) -> MissingDataError:
    there = ", ".join(f"{column} ({kind})" for column, kind in list(kinds.items())[:20])
    fact = f"{path} has no column {name!r} of {wanted}." if name else f"{path} has no column of {wanted}."
    return MissingDataError(fact, f"Its columns are {there or 'none'}.", "name them with the options data and label.")
