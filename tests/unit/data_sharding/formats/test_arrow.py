"""Arrow IPC files of both kinds: the rows that pyarrow wrote, each group decoded by itself, and damage told."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.formats.arrow import ArrowFormat

pa = pytest.importorskip("pyarrow")

Kind = Literal["stream", "file"]
BLOBS = [bytes([number]) * (number % 40 + 1) for number in range(100)]
LABELS = [number * 7 % 10 for number in range(100)]


def write(path: Path, kind: Kind, rows: int = 16, compression: str | None = None, **columns: Any) -> Path:
    table = pa.table(columns)
    opened = pa.ipc.new_stream if kind == "stream" else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=kind == "stream")
    with opened(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


def load(catalog: ds.Catalog, ids: Any = None) -> ds.RecordBatch:
    with ds.RecordReader(catalog) as reader:
        return reader.load(np.arange(len(catalog)) if ids is None else np.array(ids))


@settings(deadline=None)
@given(
    st.lists(st.none() | st.binary(max_size=30), min_size=1, max_size=40),
    st.integers(1, 50),
    st.sampled_from(["stream", "file"]),
    st.sampled_from([None, "zstd", "lz4"]),
    st.randoms(),
)
def test_byte_strings_come_back_with_their_labels(
    blobs: list[bytes | None], rows: int, kind: Kind, compression: str | None, random: Any
) -> None:
    numbers = [random.randrange(-(2**63), 2**63) for _ in blobs]
    sound = [identity for identity, blob in enumerate(blobs) if blob is not None]
    ids = random.choices(sound, k=60) if sound else []
    columns = {"image": pa.array(blobs, pa.binary()), "label": pa.array(numbers, pa.int64())}
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "a.arrow", kind, rows, compression, **columns)
        catalog = ds.Catalog.index(folder)
        batch = load(catalog, ids) if ids else None
    assert catalog.labels is not None
    assert catalog.labels.tolist() == numbers
    assert catalog.format == ArrowFormat()
    assert catalog.group_begins is not None
    assert catalog.group_begins.tolist() == [*range(0, len(blobs), rows)]
    assert batch is None or list(batch) == [blobs[identity] for identity in ids]


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_images_as_hugging_face_saves_them(tmp_path: Path, kind: Kind) -> None:
    """`dataset.save_to_disk(folder)` writes streams, beside JSON that tells nothing of the records."""
    images = [{"bytes": blob, "path": None} for blob in BLOBS]
    struct = pa.array(images, pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    write(tmp_path / "data-00000-of-00001.arrow", kind, image=struct, label=LABELS)
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / "state.json").write_text("{}")
    catalog = ds.Catalog.index(tmp_path)
    assert list(load(catalog, [99, 3, 3])) == [BLOBS[99], BLOBS[3], BLOBS[3]]
    assert catalog.labels is not None
    assert catalog.labels.tolist() == LABELS


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_other_tables_become_examples(tmp_path: Path, kind: Kind) -> None:
    words = pa.array([f"w{number // 7}" for number in range(21)])
    columns = {
        "word": words.dictionary_encode() if kind == "file" else words,
        "vector": [[1.5] * (number % 3) for number in range(21)],
        "size": [None, *range(20)],
        "view": pa.array([f"v{number}" for number in range(21)], pa.string_view()),
        "place": [{"x": number, "y": None} for number in range(21)],
    }
    write(tmp_path / "a.feather", kind, 4, **columns)
    decoded = [ds.example.decode(payload) for payload in load(ds.Catalog.index(tmp_path))]
    assert [record["word"] for record in decoded] == [[f"w{number // 7}".encode()] for number in range(21)]
    assert [list(record["vector"]) for record in decoded] == columns["vector"]
    assert [list(record["size"]) for record in decoded] == [[], *([number] for number in range(20))]
    assert [record["view"] for record in decoded] == [[f"v{number}".encode()] for number in range(21)]
    assert [[*record["place.x"], *record["place.y"]] for record in decoded] == [[number] for number in range(21)]


def test_dictionaries_that_grow_in_a_stream(tmp_path: Path) -> None:
    """Each batch is read with all the dictionaries before it, which add to each other or replace each other."""
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema({"word": kind, "n": pa.int64()})
    for deltas in (True, False):
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
        with pa.ipc.new_stream(tmp_path / "a.arrow", schema, options=options) as writer:
            for words in (["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]):
                indices = pa.array([len(words) - 1, 0], pa.int8())
                words_of = pa.DictionaryArray.from_arrays(indices, pa.array(words))
                writer.write_batch(pa.record_batch([words_of, pa.array([1, 2])], schema=schema))
        records = load(ds.Catalog.index(tmp_path), [5, 4, 3, 2, 1, 0])
        words = [ds.example.decode(payload)["word"][0] for payload in records]
        assert words == [b"a", b"d", b"a", b"c", b"a", b"b"]


def test_only_the_columns_of_the_payload_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", "file", note=pa.array([1] * 100, pa.date32()), image=BLOBS, label=LABELS)
    catalog = ds.Catalog.index(path, format=ArrowFormat(data="image", label="label"))
    assert list(load(catalog)) == BLOBS
    with pytest.raises(ds.ExampleError, match="'note'"):
        ds.Catalog.index(path)


def test_empty_batches_and_files_of_several_batches(tmp_path: Path) -> None:
    schema = pa.schema({"a": pa.binary()})
    with pa.ipc.new_file(tmp_path / "a.arrow", schema) as writer:
        for blobs in ([], [b"x"], [], [b"y", b"z"], []):
            writer.write_batch(pa.record_batch([pa.array(blobs, pa.binary())], schema=schema))
    catalog = ds.Catalog.index(tmp_path)
    assert list(load(catalog)) == [b"x", b"y", b"z"]
    assert catalog.total_bytes == (tmp_path / "a.arrow").stat().st_size


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_files_that_were_cut_are_refused(tmp_path: Path, kind: Kind) -> None:
    path = write(tmp_path / "a.arrow", kind, a=BLOBS)
    whole = path.read_bytes()
    for share in (0.3, 0.6):
        path.write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(ds.CorruptRecordError, match=r"a\.arrow.*it ends"):
            ds.Catalog.index(path)


def test_what_is_no_arrow_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.feather"
    path.write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    with pytest.raises(ds.CorruptRecordError, match="Feather's first version"):
        ds.Catalog.index(path, format="arrow")
    path.write_bytes(b"no table at all, only a text")
    with pytest.raises(ds.CorruptRecordError, match="cannot be read"):
        ds.Catalog.index(path, format="arrow")


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=12), st.integers(0, 1 << 30), st.booleans(), st.sampled_from(["stream", "file"]))
def test_garbage_is_refused_or_read(noise: bytes, at: int, cut: bool, kind: Kind) -> None:
    """No noise ends the process: what pyarrow would follow blindly is validated before."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.arrow", kind, 2, a=BLOBS[:5], b=LABELS[:5], c=["x", "yy", None, "", "zzz"])
        whole = path.read_bytes()
        at %= len(whole)
        path.write_bytes(whole[: at + 1] if cut else whole[:at] + noise + whole[at + len(noise) :])
        try:
            load(ds.Catalog.index(path))
        except (ds.CorruptRecordError, ds.MissingDataError, ds.ExampleError):
            return
