"""Which columns of a table make a record, and which one is its label."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from data_sharding.errors import CorruptRecordError, ExampleError, MissingDataError

_BINARY: Final = re.compile(r"(large_)?binary$|binary_view$|fixed_size_binary\[")
_INTEGER: Final = re.compile(r"u?int(8|16|32|64)$")
_FEATURE: Final = re.compile(
    rf"{_BINARY.pattern}|{_INTEGER.pattern}|(bool|halffloat|float|double|(large_)?string|string_view|null)$"
)
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
        types = [(field.name, field.type) for field in schema]
        values = {name: kind.value_type if str(kind).startswith("dictionary<") else kind for name, kind in types}
        kinds = {name: str(kind).replace("large_", "").replace("_view", "") for name, kind in values.items()}
        used = {f"{name} {kinds[name]}" for name in self.payload}
        return frozenset(used | ({f"label {self.label} {kinds[self.label]}"} if self.label else set()))


def choose_columns(path: str, schema: Any, data: str, label: str, only: Sequence[str] = ()) -> Columns:
    """The columns for a flattened schema and a user's choice; an empty name is none. See `TableFormat`.

    Raises MissingDataError, CorruptRecordError or ExampleError.
    """
    kinds = {field.name: field.type for field in schema}
    if len(kinds) != len(schema):
        fact = f"{path}, a table by byte offset 0, has two columns of the same name."
        conflict = f"They cannot be told apart among {', '.join(kinds)}."
        raise CorruptRecordError(fact, conflict, "write it again with distinct names.", path=path)
    if only:
        kinds = _selected(path, kinds, only, data, label)
    binary = [name for name, kind in kinds.items() if _BINARY.match(str(kind))]
    integers = [name for name, kind in kinds.items() if _INTEGER.match(str(kind))]
    media = _media(kinds)
    data = media.get(data, data)
    if data and data not in binary:
        raise _no_column(path, kinds, data, "byte strings")
    if label and label not in integers:
        raise _no_column(path, kinds, label, "integers")
    paths = {f"{name}.path" for name in media}
    if not data and not label and len(kinds.keys() - paths) == 2 and len(binary) == len(integers) == 1:
        label = integers[0]
    features = tuple(name for name in kinds if name != label)
    if not features:
        raise _no_column(path, kinds, "", "data")
    if data or (len(set(features) - paths) == 1 and binary):
        return Columns(data or binary[0], (), label)
    for name in features:
        kind = kinds[name]
        if not _FEATURE.match(str(kind.value_type if _HOLDS_VALUES.match(str(kind)) else kind)):
            raise ExampleError(
                f"The column {name!r} of {path} has the type {kind}.",
                "A row of several columns becomes a tf.train.Example, which holds bytes, integers and floats only.",
                "name the columns to read with the option columns, or one of byte strings with the option data; or "
                "give the table of pyarrow to Catalog.of or data.dataset, where rows hold values of any type.",
            )
    return Columns("", features, label)


def flat_schema(schema: Any) -> Any:
    """A pyarrow schema in which each field of a struct is a column of its own, "column.field"."""
    import pyarrow as pa

    while _has_structs(schema):
        schema = pa.schema([field for top in schema for field in top.flatten()])
    return schema


def flat_table(table: Any) -> Any:
    """As `flat_schema`, of a pyarrow Table; a field of a struct that is null is null."""
    while _has_structs(table.schema):
        table = table.flatten()
    return table


def _has_structs(schema: Any) -> bool:
    return any(str(field.type).startswith("struct<") for field in schema)


def _media(kinds: Mapping[str, Any]) -> dict[str, str]:
    """Column → its bytes, of the structs {bytes, path} as which Hugging Face keeps images and sounds."""
    of = {name.rpartition(".")[0] for name in kinds if name.endswith(".bytes")}
    fields = {name: {field for field in kinds if field.startswith(f"{name}.")} for name in of}
    whole = {name for name in of if fields[name] == {f"{name}.bytes", f"{name}.path"}}
    return {name: f"{name}.bytes" for name in whole if _BINARY.match(str(kinds[f"{name}.bytes"]))}


def float64_columns(schema: Any) -> frozenset[str]:
    """Columns of 64-bit floats, or of lists of them."""
    kinds = {field.name: field.type for field in schema}
    inner = {name: kind.value_type if _HOLDS_VALUES.match(str(kind)) else kind for name, kind in kinds.items()}
    return frozenset(name for name, kind in inner.items() if str(kind) == "double")


def _selected(path: str, kinds: dict[str, Any], only: Sequence[str], data: str, label: str) -> dict[str, Any]:
    """Those of the columns that the user names, in the file's order."""
    for name in only:
        if not any(_belongs(column, name) for column in kinds):
            raise _no_column(path, kinds, name, "any type")
    wanted = (*only, *filter(None, (data, label)))
    return {name: kind for name, kind in kinds.items() if any(_belongs(name, each) for each in wanted)}


def _belongs(column: str, name: str) -> bool:
    """Whether a column has this name, or is a field of the struct of this name."""
    return column == name or column.startswith(f"{name}.")


def _no_column(path: str, kinds: dict[str, Any], name: str, wanted: str) -> MissingDataError:
    there = ", ".join(f"{column} ({kind})" for column, kind in list(kinds.items())[:20])
    fact = f"{path} has no column {name!r} of {wanted}." if name else f"{path} has no column of {wanted}."
    return MissingDataError(
        fact, f"Its columns are {there or 'none'}.", "name them with the options data, label and columns."
    )
