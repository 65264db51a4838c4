"""Which columns of a Parquet file make a record, and which one is its label."""

from __future__ import annotations

from typing import Any, NamedTuple

from data_sharding.errors import CorruptRecordError, ExampleError, MissingDataError


class Columns(NamedTuple):
    """Names of the columns to use; a field of a struct is called "column.field".

    Attributes:
        data: the column of byte strings that are the payloads; empty: payloads are Examples of `features`.
        features: the columns of an Example.
        label: the column of labels; empty: none.
    """

    data: str
    features: tuple[str, ...]
    label: str

    @property
    def payload(self) -> list[str]:
        """What has to be read for payloads."""
        return [self.data] if self.data else list(self.features)

    def layout(self, schema: Any) -> frozenset[str]:
        """The columns with their types. What Arrow alone tells apart (large types, dictionaries) is one type here."""
        kinds = {field.name: _plain_type(field.type) for top in schema for field in top.flatten()}
        used = {f"{name} {kinds[name]}" for name in self.payload}
        return frozenset(used | ({f"label {self.label} {kinds[self.label]}"} if self.label else set()))


def choose_columns(path: str, schema: Any, data: str, label: str) -> Columns:
    """The columns for a pyarrow schema and a user's choice, where empty names mean that none was made.

    A column of byte strings, alone or beside one of integers, is the data, and the integers are labels. Of any other
    table all columns but the chosen label become an Example.

    Raises:
        MissingDataError: a chosen column does not exist or has another type, or none is left.
        CorruptRecordError: two columns have the same name.
        ExampleError: a column that would be part of an Example has a type that it cannot hold.
    """
    kinds = {field.name: field.type for top in schema for field in top.flatten()}
    if len(kinds) != sum(len(top.flatten()) for top in schema):
        raise CorruptRecordError(
            f"{path}, a Parquet file by byte offset 0, has two columns of the same name.",
            f"They cannot be told apart among {', '.join(kinds)}.",
            "write it again with distinct names.",
            path=path,
            offset=0,
        )
    binary = [name for name, kind in kinds.items() if _is_binary(kind)]
    integers = [name for name, kind in kinds.items() if _is_integer(kind)]
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
    _check_features(path, {name: kinds[name] for name in features})
    return Columns("", features, label)


def _check_features(path: str, kinds: dict[str, Any]) -> None:
    for name, kind in kinds.items():
        if not _is_feature(kind.value_type if _holds_values(kind) else kind):
            raise ExampleError(
                f"The column {name!r} of {path} has the type {kind}.",
                "A row of several columns becomes a tf.train.Example, which holds bytes, integers and floats only.",
                "name a column of byte strings with the option data, or write the table without this column.",
            )


def _is_binary(kind: Any) -> bool:
    return str(kind) in ("binary", "large_binary") or str(kind).startswith("fixed_size_binary[")


def _is_integer(kind: Any) -> bool:
    return str(kind) in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def _is_feature(kind: Any) -> bool:
    others = ("bool", "halffloat", "float", "double", "string", "large_string")
    return _is_binary(kind) or _is_integer(kind) or str(kind) in others


def _plain_type(kind: Any) -> str:
    return str(kind.value_type if str(kind).startswith("dictionary<") else kind).replace("large_", "")


def _holds_values(kind: Any) -> bool:
    return str(kind).startswith(("list<", "large_list<", "fixed_size_list<", "dictionary<"))


def _no_column(path: str, kinds: dict[str, Any], name: str, wanted: str) -> MissingDataError:
    there = ", ".join(f"{column} ({kind})" for column, kind in list(kinds.items())[:20])
    return MissingDataError(
        f"{path} has no column {name!r} of {wanted}." if name else f"{path} has no column of {wanted}.",
        f"Its columns are {there or 'none'}.",
        "name them with the options data and label.",
    )
