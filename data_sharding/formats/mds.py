"""MDS, the format of mosaicml-streaming: shards that begin with the places of their samples and their columns.

    uint32              n, samples
    uint32[n + 1]       where each sample begins, and where the last one ends, from the start of the file
    JSON                column_names, column_encodings, column_sizes (null where it differs from sample to sample)
    samples             the sizes uint32 of the columns that have none above, then all columns' bytes

One record is a sample as a `tf.train.Example`. Shards that were compressed are to be decompressed first.
"""

import glob
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_sharding import example
from data_sharding.errors import CorruptRecordError, ExampleError, MissingDataError
from data_sharding.formats.mds_values import Decoder, decoder_of, may_have_dimensions, with_shapes
from data_sharding.formats.record_format import Damaged, RecordFormat, RecordIndex, Unpacked
from data_sharding.storage import ByteSource, FileEntry, is_remote, open_source
from data_sharding.storage.file_entry import matches
from data_sharding.storage.input_files import Paths, find_files
from data_sharding.storage.redaction import redacted
from data_sharding.storage.side_file import read_if_there

_U32: Final = np.dtype("<u4")
_INDEX: Final = "index.json"  # of mosaicml-streaming: all shards of a folder, under their names without compression


class Column(NamedTuple):
    """A column of all samples of a shard; `size` in bytes, None where it differs."""

    name: str
    encoding: str
    size: int | None
    decode: Decoder


@dataclass(frozen=True)
class MdsFormat(RecordFormat):
    """Shards of mosaicml-streaming."""

    name: ClassVar[str] = "mds"

    @property
    def patterns(self) -> tuple[str, ...]:
        return ("*.mds",)

    def scan(self, path: str, source: ByteSource, check_data: bool) -> RecordIndex:
        assert isinstance(source, MdsSource)
        places, columns = source.places, source.columns
        index = RecordIndex(
            places[:-1], np.diff(places), layout=frozenset(f"{each.name} ({each.encoding})" for each in columns)
        )
        if not check_data:
            return index
        spans = source.spans(places[:-1].tolist(), places[1:].tolist())
        damage = [
            _unreadable_sample(path, number, span, int(places[number]))
            for number, span in enumerate(spans)
            if isinstance(span, Damaged)
        ]
        return index._replace(damage=tuple(damage))

    def for_paths(self, paths: Paths) -> "MdsFormat":
        """The format itself. Raises MissingDataError: shards that the index of a folder lists are not in it."""
        for path in map(str, [paths] if isinstance(paths, str | Path) else paths):
            is_folder = os.path.isdir(path) or (is_remote(path) and not glob.has_magic(path))
            if is_folder and not matches(path, self.patterns):
                _require_all_shards(path.rstrip("/"), self.patterns)
        return self

    def example_label(self, entry: FileEntry) -> str:  # noqa: ARG002
        return ""

    def open(self, entry: FileEntry) -> ByteSource:
        source = open_source(entry)
        places = _places(entry.path, source)
        return MdsSource(source, places, _columns(entry.path, source, places))

    def unpack(self, raw: list[bytes], crcs: NDArray[np.uint32] | None, check: bool) -> Unpacked:  # noqa: ARG002
        return Unpacked(raw, np.array([not isinstance(payload, Damaged) for payload in raw], np.bool_))


class MdsSource:
    """A shard whose spans are samples, each as a serialized `tf.train.Example`.

    Attributes:
        places: int64[n + 1], where samples begin, and where the last one ends.
        columns: of each sample.
    """

    def __init__(self, source: ByteSource, places: NDArray[np.int64], columns: Sequence[Column]) -> None:
        self._source, self.places, self.columns = source, places, columns

    def size(self) -> int:
        return self._source.size()

    def __getitem__(self, span: slice) -> bytes:
        return self._source[span]

    def spans(self, begins: Sequence[int], ends: Sequence[int]) -> list[bytes]:
        return [self._example(content) for content in self._source.spans(begins, ends)]

    def file(self) -> BinaryIO:
        return self._source.file()

    def _example(self, content: bytes) -> bytes:
        try:
            return example.encode(with_shapes(self._values(content)), keep_float64=True)
        except ExampleError as error:  # the sample is sound
            return Damaged.because(f"{error.fact} {error.conflict}", "write the shards again with that column as str")
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            return Damaged.because(f"Its columns cannot be read ({type(error).__name__}: {error}).")

    def _values(self, content: bytes) -> dict[str, Any]:
        given = sum(column.size is None for column in self.columns)
        sizes, at = iter(np.frombuffer(content[: 4 * given], _U32).tolist()), 4 * given
        values: dict[str, Any] = {}
        for column in self.columns:
            size = next(sizes) if column.size is None else column.size
            if at + size > len(content):
                raise ValueError(f"the column {column.name!r} ends behind the sample")
            values[column.name] = column.decode(content[at : at + size])
            at += size
        if at != len(content):
            raise ValueError(f"{len(content) - at} bytes belong to no column")
        return values


def _require_all_shards(folder: str, patterns: tuple[str, ...]) -> None:
    listed = _listed_shards(read_if_there(f"{folder}/{_INDEX}"))
    there = {path.rpartition("/")[2] for path in find_files(folder, patterns)} if listed else set()
    if missing := [name for name in listed if name not in there]:
        raise MissingDataError(
            f"{redacted(folder)}/{_INDEX} lists {len(listed)} shards, and {missing[0]} is not there.",
            "Their records would be left out without a word.",
            "decompress shards that end in .zstd or the like, and fetch the others; a glob reads those that are there.",
        )


def _listed_shards(index: bytes | None) -> list[str]:
    try:
        return [str(shard["raw_data"]["basename"]) for shard in json.loads(index or b"{}")["shards"]]
    except (ValueError, KeyError, TypeError):  # other programs write files of that name, too
        return []


def _places(path: str, source: ByteSource) -> NDArray[np.int64]:
    """int64[n + 1], where samples begin, and where the last one ends."""
    size = source.size()
    count = int(np.frombuffer(source[0:4], _U32)[0]) if size >= 8 else 0
    first = 4 * (count + 2)
    places = np.frombuffer(source[4:first], _U32).astype(np.int64) if count and first < size else np.empty(0, np.int64)
    if not len(places) or places[0] < first or places[-1] != size or (np.diff(places) < 0).any():
        raise _refusal(path, "the places of its samples do not fit its size", 0)
    return places


def _columns(path: str, source: ByteSource, places: NDArray[np.int64]) -> list[Column]:
    try:
        header = json.loads(source[4 * (len(places) + 1) : int(places[0])])
        rows = zip(header["column_names"], header["column_encodings"], header["column_sizes"], strict=True)
        found = [(str(name), str(encoding), None if size is None else int(size)) for name, encoding, size in rows]
        decoders = [decoder_of(encoding) for _, encoding, _ in found]
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise _refusal(path, f"its columns are not named ({type(error).__name__})", 4 * (len(places) + 1)) from error
    columns = [Column(*column, kind) for column, kind in zip(found, decoders, strict=True) if kind is not None]
    _require_distinct(path, {name: encoding for name, encoding, _ in found}, [name for name, _, _ in found])
    if None in decoders:
        name, encoding, _ = found[decoders.index(None)]
        raise CorruptRecordError(
            f"The column {name!r} of {path} is written as {encoding}.",
            "Pickles are not read, since they run code, and other objects of Python have no arrays.",
            "write the shards again with arrays, numbers, text, bytes, JPEG, PNG or JSON.",
            path=path,
        )
    return columns


def _require_distinct(path: str, encodings: Mapping[str, str], names: Sequence[str]) -> None:
    """Refuse columns of which one would take another's place in the Example."""
    twice = next((name for name in names if names.count(name) > 1), None)
    hidden = next(
        (name for name in names if name.endswith(".shape") and may_have_dimensions(encodings.get(name[:-6], ""))), None
    )
    if twice is not None:
        fact, conflict = f"{path} has two columns of the name {twice!r}.", "Only one of them could be read."
    elif hidden is not None:
        fact = f"{path} has a column {hidden!r} beside an array column {hidden[:-6]!r}."
        conflict = "By that name the shape of the array is read, so only one of the two could be."
    else:
        return
    raise CorruptRecordError(fact, conflict, "write the shards again with another name for one of them.", path=path)


def _unreadable_sample(path: str, number: int, span: Damaged, offset: int) -> CorruptRecordError:
    if not span.hint:
        return _refusal(path, f"sample {number}: {span.reason}", offset)
    fact = f"Sample {number} of {path} cannot be used."
    return CorruptRecordError(fact, span.reason, f"{span.hint}.", path=path, offset=offset)


def _refusal(path: str, fact: str, offset: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path} is not a sound MDS shard: {fact}.",
        "No sample can be read from it." if not offset else "That sample cannot be read.",
        "restore the file from its source; decompress shards that end in .zstd or the like first.",
        path=path,
        offset=offset,
    )
