"""Parquet files: rows come back as they were written, in any order, from any number of threads."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.formats.parquet import ParquetFormat, ParquetTable
from data_sharding.formats.row_source import RowSource
from data_sharding.kept_blocks import KeptBlocks
from data_sharding.storage import describe_file, open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

BLOBS = [bytes([number]) * (number % 40 + 1) for number in range(100)]
LABELS = [number * 7 % 10 for number in range(100)]


def write(path: Path, row_group_size: int = 16, **columns: Any) -> Path:
    # Neither compression nor a dictionary: payloads lie in the file as they are, where a test may damage one.
    options = {"write_page_checksum": True, "compression": "none", "use_dictionary": False}
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size, **options)
    return path


def load(catalog: ds.Catalog, ids: Iterable[int] | None = None) -> ds.RecordBatch:
    with ds.RecordReader(catalog) as reader:
        return reader.load(np.array([*(range(len(catalog)) if ids is None else ids)]))


def labels(catalog: ds.Catalog) -> list[int]:
    assert catalog.labels is not None
    return [int(label) for label in catalog.labels]


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=40), st.integers(1, 50), st.randoms())
def test_byte_strings_come_back_with_their_labels(blobs: list[bytes], group: int, random: Any) -> None:
    numbers = [random.randrange(-(2**63), 2**63) for _ in blobs]
    ids = random.choices(range(len(blobs)), k=60)
    with tempfile.TemporaryDirectory() as folder:
        write(
            Path(folder) / "a.parquet", group, image=pa.array(blobs, pa.binary()), label=pa.array(numbers, pa.int64())
        )
        catalog = ds.Catalog.index(folder)
        batch = load(catalog, ids)
        catalog.save(Path(folder) / "saved.npz")
        loaded = ds.Catalog.load(Path(folder) / "saved.npz")
    assert list(batch) == [blobs[identity] for identity in ids]
    assert batch.labels is not None
    assert batch.labels.tolist() == [numbers[identity] for identity in ids]
    assert (loaded.fingerprint, loaded.format) == (catalog.fingerprint, ParquetFormat())


def test_other_tables_become_examples(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "words": ["one", "zwölf", None],
        "flag": [True, False, None],
        "vector": [[1.5, 2.0], [], None],
        "numbers": [[1, 2], [3], []],
        "size": [7, -8, 9],
        "raw": [b"\x00", b"", b"xyz"],
        "category": pa.array(["a", "b", "a"]).dictionary_encode(),
    }
    write(tmp_path / "a.parquet", 2, **columns)
    decoded = [ds.example.decode(payload) for payload in load(ds.Catalog.index(tmp_path))]
    assert [list(record["words"]) for record in decoded] == [[b"one"], ["zwölf".encode()], []]
    assert [list(record["flag"]) for record in decoded] == [[1], [0], []]
    assert [list(record["vector"]) for record in decoded] == [[1.5, 2.0], [], []]
    assert [list(record["numbers"]) for record in decoded] == [[1, 2], [3], []]
    assert [list(record["raw"]) for record in decoded] == [[b"\x00"], [b""], [b"xyz"]]
    assert [list(record["category"]) for record in decoded] == [[b"a"], [b"b"], [b"a"]]
    labelled = ds.Catalog.index(tmp_path, format=ParquetFormat(label="size"))
    assert labels(labelled) == [7, -8, 9]
    assert "size" not in ds.example.decode(load(labelled)[0])


@pytest.mark.parametrize(
    ("columns", "options", "data", "label"),
    [
        ({"a": BLOBS}, {}, "a", ""),
        ({"a": BLOBS, "b": LABELS}, {}, "a", "b"),
        ({"b": LABELS, "a": BLOBS}, {"data": "a"}, "a", ""),
        ({"a": BLOBS, "b": LABELS, "c": LABELS[::-1]}, {"data": "a", "label": "c"}, "a", "c"),
        ({"a": BLOBS, "b": BLOBS[::-1]}, {"data": "b"}, "b", ""),
    ],
)
def test_columns_are_chosen(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], data: str, label: str
) -> None:
    catalog = ds.Catalog.index(write(tmp_path / "a.parquet", **columns), format=ParquetFormat(**options))
    assert list(load(catalog)) == columns[data]
    assert (catalog.labels is None) if not label else labels(catalog) == columns[label]


@pytest.mark.parametrize("kind", ["float64", "list", "dictionary"])
def test_float64_stays_float64(kind: str, tmp_path: Path) -> None:
    values = np.array([16777217.0, 0.1, 1e300, np.nan, -0.0])
    column = {
        "float64": pa.array(values),
        "list": pa.array([[value, value + 1] for value in values]),
        "dictionary": pa.array(values).dictionary_encode(),
    }[kind]
    single = pa.array(np.float32([0.1] * 5))
    batch = ds.example.decode_batch(load(ds.Catalog.index(write(tmp_path / "a.parquet", x=column, y=single))).payloads)
    width = 2 if kind == "list" else 1
    expected = np.stack([values, values + 1], axis=1)[:, :width]
    assert (batch["x"].dtype, batch["x"].tobytes()) == (np.float64, expected.tobytes())
    assert (batch["y"].dtype, batch["y"][0, 0]) == (np.float32, np.float32(0.1))


def test_only_the_named_columns_are_read(tmp_path: Path) -> None:
    """So that others may have types that no Example holds."""
    dates = pa.array([0] * 3, pa.date32())
    path = write(tmp_path / "a.parquet", when=dates, x=[1, 2, 3], box=[{"top": 1.0, "when": 5}] * 3, size=[7, 8, 9])
    catalog = ds.Catalog.index(path, format=ParquetFormat(columns=("box", "x"), label="size"))
    assert labels(catalog) == [7, 8, 9]
    assert {name: [*values] for name, values in ds.example.decode(load(catalog)[1]).items()} == {
        "x": [2],
        "box.top": [1.0],
        "box.when": [5],
    }


def test_float64_values_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", x=pa.array([0.1, None]), y=pa.array([[], [0.1]]), z=[1, 2])
    first, second = (ds.example.decode(payload) for payload in load(ds.Catalog.index(path)))
    assert (first["x"], first["y"]) == (np.array([0.1]), [])
    assert (second["x"], second["y"]) == ([], np.array([0.1]))


def test_a_field_of_a_struct_is_a_column(tmp_path: Path) -> None:
    images = pa.array(
        [{"bytes": blob, "path": "x"} for blob in BLOBS], pa.struct({"bytes": pa.binary(), "path": pa.string()})
    )
    path = write(tmp_path / "a.parquet", image=images, label=LABELS)
    catalog = ds.Catalog.index(path, format=ParquetFormat(data="image.bytes", label="label"))
    assert list(load(catalog)) == BLOBS
    assert labels(catalog) == LABELS
    deep = ds.Catalog.index(write(path, a=[{"x": {"y": 1, "z": 2.5}}, {"x": None}, None], b=["1", "2", None]))
    decoded = [ds.example.decode(payload) for payload in load(deep)]
    values = [{name: list(value) for name, value in record.items()} for record in decoded]
    assert values[0] == {"a.x.y": [1], "a.x.z": [2.5], "b": [b"1"]}
    assert values[1:] == [{"a.x.y": [], "a.x.z": [], "b": [b"2"]}, {"a.x.y": [], "a.x.z": [], "b": []}]


@pytest.mark.parametrize("columns", [{}, {"label": LABELS}])
@pytest.mark.parametrize("data", ["", "image", "image.bytes"])
def test_images_of_hugging_face_are_byte_strings(tmp_path: Path, columns: dict[str, Any], data: str) -> None:
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    images = pa.array([{"bytes": blob, "path": None} for blob in BLOBS[:-1]] + [None], kind)
    path = write(tmp_path / "train-00000-of-00001.parquet", image=images, **columns)
    label = "label" if data and columns else ""  # as before: with a column of data, labels are asked for
    catalog = ds.Catalog.index(path, format=ParquetFormat(data=data, label=label))
    assert list(load(catalog, range(99))) == BLOBS[:-1]
    assert (catalog.labels is None) == (not columns)
    with pytest.raises(ds.CorruptRecordError, match="row 99: .* no value in the column 'image.bytes'"):
        ds.Catalog.index(path, check_data=True)


def test_a_struct_with_more_than_an_image_is_an_example(tmp_path: Path) -> None:
    images = [{"bytes": b"x", "path": "a", "width": 1}]
    (payload,) = load(ds.Catalog.index(write(tmp_path / "a.parquet", image=images, label=[1])))
    assert set(ds.example.decode(payload)) == {"image.bytes", "image.path", "image.width", "label"}


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
def test_every_kind_of_byte_string(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / "a.parquet", image=pa.array(BLOBS, getattr(pa, kind)()))
    assert list(load(ds.Catalog.index(path))) == BLOBS
    write(path, image=pa.array([b"abc", b"def"], pa.binary(3)))
    assert list(load(ds.Catalog.index(path))) == [b"abc", b"def"]


@pytest.mark.parametrize(
    ("columns", "options", "error", "message"),
    [
        ({"a": BLOBS}, {"data": "b"}, ds.MissingDataError, "no column 'b' of byte strings. Its columns are a"),
        ({"a": BLOBS}, {"label": "a"}, ds.MissingDataError, "no column 'a' of integers"),
        ({"b": LABELS}, {"label": "b"}, ds.MissingDataError, "no column of data"),
        ({"b": LABELS}, {"columns": ("b", "c")}, ds.MissingDataError, "no column 'c' of any type. Its columns are b"),
        ({"a": pa.array([1], pa.date32())}, {}, ds.ExampleError, "tf.train.Example, which holds"),
        ({"a": [{"x": {"y": [[1]]}}]}, {}, ds.ExampleError, "'a.x.y'"),
        ({"a": BLOBS[:2], "b": [1, None]}, {}, ds.CorruptRecordError, "row 1 .* without a label"),
        (
            {"a": BLOBS[:1], "b": pa.array([2**63], pa.uint64())},
            {},
            ds.ExampleError,
            "'b' of .*a.parquet has the value 922",
        ),
        ({"a": pa.array([], pa.binary())}, {}, ds.MissingDataError, "holds no record"),
    ],
)
def test_tables_that_are_no_records_are_refused(
    tmp_path: Path, columns: dict[str, Any], options: dict[str, Any], error: type[ds.ShardingError], message: str
) -> None:
    path = write(tmp_path / "a.parquet", 1 << 20, **columns)
    with pytest.raises(error, match=message) as caught:
        ds.Catalog.index(path, format=ParquetFormat(**options))
    assert isinstance(caught.value, ds.ShardingError)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"a": BLOBS, "b": LABELS}, {"a": BLOBS}, r"1\.parquet has label b int64, .*2\.parquet has not"),
        ({"a": BLOBS}, {"c": BLOBS}, r"1\.parquet has a binary, .*2\.parquet has c binary"),
        ({"x": LABELS}, {"x": ["1"] * 100}, r"1\.parquet has x int64, .*2\.parquet has x string"),
        ({"x": LABELS}, {"x": pa.array(LABELS, pa.int32())}, r"has x int64, .* has x int32"),
        ({"x": LABELS, "y": LABELS}, {"x": LABELS}, r"1\.parquet has y int64, .*2\.parquet has not"),
        ({"x": LABELS}, {"x": LABELS, "y": LABELS}, r"2\.parquet has y int64, .*1\.parquet has not"),
        ({"x": [[1.0]]}, {"x": [1.0]}, r"has x list<.* has x double"),
    ],
)
def test_files_of_other_schemas_are_refused(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    write(tmp_path / "1.parquet", **first)
    write(tmp_path / "2.parquet", **second)
    with pytest.raises(ds.PlanError, match=message):
        ds.Catalog.index(tmp_path)


def test_what_only_arrow_tells_apart_is_one_schema(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", s=["a", "b"], t=pa.array(["a", "b"]).dictionary_encode())
    write(tmp_path / "2.parquet", t=["a", "b"], s=pa.array(["a", "b"], pa.large_string()))
    assert len(ds.Catalog.index(tmp_path)) == 4


def test_columns_that_are_not_read_may_differ(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", a=BLOBS, note=["x"] * 100)
    write(tmp_path / "2.parquet", a=BLOBS)
    assert len(ds.Catalog.index(tmp_path, format=ParquetFormat(data="a"))) == 200


def test_more_rows_than_bytes_are_read(tmp_path: Path) -> None:
    rows = 200_000
    table = pa.table({"flag": [True] * rows, "number": pa.array(np.arange(rows) % 3, pa.int8())})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=rows // 2)
    assert path.stat().st_size < rows
    ds.Catalog.index(path).save(tmp_path / "saved.npz")
    catalog = ds.Catalog.load(tmp_path / "saved.npz")
    assert (len(catalog), catalog.total_bytes, catalog.lost_bytes) == (rows, path.stat().st_size, 0)
    decoded = [ds.example.decode(payload) for payload in load(catalog, [0, rows - 2, rows // 2])]
    assert [list(record["number"]) for record in decoded] == [[0], [0], [1]]


def test_a_footer_cannot_invent_rows(tmp_path: Path) -> None:
    content = write(path := tmp_path / "a.parquet", 1000, a=pa.array([1] * 1000, pa.int8())).read_bytes()
    assert content.count(b"\xd0\x0f") >= 3  # 1000 as Thrift writes it: values of the page and of the column, rows
    path.write_bytes(content.replace(b"\xd0\x0f", b"\xfe\x7f"))
    assert path.stat().st_size < 8191
    with pytest.raises(ds.CorruptRecordError, match="cannot be read"):
        ds.Catalog.index(path)


def test_unlike_row_groups_stay_inside_the_file(tmp_path: Path) -> None:
    large = np.random.default_rng(0).bytes(100_000)
    with pq.ParquetWriter(tmp_path / "a.parquet", pa.schema({"a": pa.binary()})) as writer:
        writer.write_table(pa.table({"a": [b""] * 10_000}))
        writer.write_table(pa.table({"a": [large]}))
    catalog = ds.Catalog.index(tmp_path)
    assert catalog.lengths[-1] > 50_000
    assert catalog.total_bytes == (tmp_path / "a.parquet").stat().st_size
    catalog.save(tmp_path / "saved.npz")
    assert load(ds.Catalog.load(tmp_path / "saved.npz"), [10_000]).payloads == [large]


def test_rows_without_a_label_can_be_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", a=BLOBS[:4], b=[1, None, 3, None])
    catalog = ds.Catalog.index(path, on_corrupt="mask")
    assert labels(catalog) == [1, 3]
    assert list(load(catalog)) == [BLOBS[0], BLOBS[2]]
    assert [damage.offset for damage in catalog.damage] == [1, 3]


def test_a_row_without_a_value_is_masked_or_named(tmp_path: Path) -> None:
    catalog = ds.Catalog.index(path := write(tmp_path / "a.parquet", a=[b"x", None, b"y"]))
    assert list(load(catalog, [0, 2])) == [b"x", b"y"]
    with pytest.raises(ds.CorruptRecordError, match=r"(?s)Record 1, .* at row 1, .* no value in the column 'a'"):
        load(catalog, [0, 1, 2])
    with ds.RecordReader(catalog, on_corrupt="mask") as reader:
        assert reader.load(np.arange(3)).intact.tolist() == [True, False, True]
    with pytest.raises(ds.CorruptRecordError, match="row 1: .* no value in the column 'a'"):
        ds.Catalog.index(path, check_data=True)


@pytest.mark.parametrize("values", [[[1, 2], [3, None], [4]], [[1.5], [None, 2.5], []], [["a"], ["b", None], []]])
def test_a_list_with_a_null_is_masked_or_named(tmp_path: Path, values: list[Any]) -> None:
    catalog = ds.Catalog.index(path := write(tmp_path / "a.parquet", a=values, b=[1, 2, 3]))
    with pytest.raises(
        ds.CorruptRecordError, match=r"(?s)Record 1, .*a.parquet at row 1, .* list in the column 'a' has a null"
    ):
        load(catalog, [0, 1, 2])
    with ds.RecordReader(catalog, on_corrupt="mask") as reader:
        assert reader.load(np.arange(3)).intact.tolist() == [True, False, True]
    with pytest.raises(ds.CorruptRecordError, match="row 1: A list in the column 'a' has a null"):
        ds.Catalog.index(path, check_data=True)


@pytest.mark.parametrize(
    "column",
    [
        lambda values: pa.array(values, pa.uint64()),
        lambda values: pa.array([[value] for value in values], pa.list_(pa.uint64())),
        lambda values: pa.array(values, pa.uint64()).dictionary_encode(),
    ],
)
def test_an_integer_beyond_int64_is_refused_and_not_masked(tmp_path: Path, column: Any) -> None:
    small, large = 2**63 - 1, 2**63
    catalog = ds.Catalog.index(write(tmp_path / "b.parquet", a=column([small, 1]), b=[1, 2]), check_data=True)
    assert ds.example.decode(load(catalog)[0])["a"].tolist() == [small]
    catalog = ds.Catalog.index(path := write(tmp_path / "a.parquet", a=column([1, large]), b=[1, 2]))
    with ds.RecordReader(catalog, on_corrupt="mask") as reader:
        for attempt in (
            lambda: reader.load(np.arange(2)),
            lambda: ds.Catalog.index(path, on_corrupt="mask", check_data=True),
        ):
            with pytest.raises(ds.ExampleError, match=f"The column 'a' of .*a.parquet has the value {large}"):
                attempt()


def test_a_label_beyond_int64_is_refused_and_not_masked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", a=BLOBS[:2], b=pa.array([1, 2**63], pa.uint64()))
    with pytest.raises(ds.ExampleError, match="The column 'b' of .*a.parquet has the value 9223372036854775808"):
        ds.Catalog.index(path, on_corrupt="mask")
    assert labels(ds.Catalog.index(write(path, a=BLOBS[:2], b=pa.array([7, 2**63 - 1], pa.uint64())))) == [7, 2**63 - 1]


def test_threads_share_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 10, a=BLOBS, b=LABELS)
    random = np.random.default_rng(0)
    requests = [random.integers(0, 100, 30) for _ in range(100)]
    with ds.RecordReader(ds.Catalog.index(path)) as reader, ThreadPoolExecutor(4) as pool:
        for ids, payloads in zip(requests, pool.map(reader.read, requests, timeout=60), strict=True):
            assert payloads == [BLOBS[identity] for identity in ids]


def test_all_files_together_keep_only_so_many_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("data_sharding.formats.row_source.KEPT", recent := KeptBlocks(4000))
    for number in range(6):
        write(tmp_path / f"{number}.parquet", 10, a=BLOBS)
    sources = [RowSource(entry, open_source(entry), ParquetTable) for entry in ds.Catalog.index(tmp_path).files]
    for source in sources * 2:
        assert source.spans([*range(100)], [*range(1, 101)]) == BLOBS
        sizes.append(sum(table.nbytes for other in sources for table in other._groups.values()))
    assert 2000 < max(sizes) <= 4000
    assert source[7:8] == BLOBS[7]
    assert source[99:100] == BLOBS[99]
    del source, sources
    one = open_source(entry := describe_file(str(tmp_path / "0.parquet")))
    assert RowSource(entry, one, ParquetTable).spans([*range(100)], [*range(1, 101)]) == BLOBS
    assert recent.kept <= 4000


def test_memory_stays_flat_over_many_files(tmp_path: Path) -> None:
    """24 files of 32 MB decoded each: 768 MB in all, 64 MB of which may be kept."""
    table = pa.table({"a": [bytes([number % 7]) * 32_000 for number in range(1000)]})
    pq.write_table(table, tmp_path / "00.parquet", row_group_size=500)
    for number in range(1, 24):
        shutil.copy(tmp_path / "00.parquet", tmp_path / f"{number:02}.parquet")
    script = """if True:
        import resource, sys, numpy as np, data_sharding as ds
        from data_sharding.kept_blocks import KEPT
        KEPT.keep_at_most(64 << 20)
        catalog = ds.Catalog.index(sys.argv[1])
        with ds.RecordReader(catalog) as reader:
            reader.read(np.arange(10))
            begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            for file in range(24):
                reader.read(np.arange(file * 1000, file * 1000 + 1000, 100))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - begin) >> 10)
    """
    ran = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 250


def damaged(tmp_path: Path, **columns: Any) -> Path:
    """Row groups of 50 rows, one of which has a page that does not match its checksum: that of row 70."""
    path = write(tmp_path / "a.parquet", 50, a=[bytes([number]) * 100 for number in range(150)], **columns)
    flip(path, bytes([70]) * 20)
    return path


def flip(path: Path, where: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(where)] ^= 1
    path.write_bytes(content)


def test_damage_in_a_row_group_names_its_rows(tmp_path: Path) -> None:
    catalog = ds.Catalog.index(path := damaged(tmp_path))
    with pytest.raises(ds.CorruptRecordError, match=r"Record 60, .* at row 60, .*\sRows 50 to 99 .*CRC") as caught:
        load(catalog, [3, 60, 61])
    assert caught.value.offset == 60
    assert load(catalog, [3]).payloads == [bytes([3]) * 100]
    with pytest.raises(ds.CorruptRecordError, match="rows 50 to 99 .* cannot be read") as caught:
        ds.Catalog.index(path, check_data=True)
    assert caught.value.offset == 50


@pytest.mark.parametrize("check_data", [False, True])
def test_a_damaged_row_group_is_masked(tmp_path: Path, check_data: bool) -> None:
    catalog = ds.Catalog.index(damaged(tmp_path), check_data, on_corrupt="mask")
    assert (len(catalog), len(catalog.damage)) == (150, int(check_data))
    with ds.RecordReader(catalog, on_corrupt="mask") as reader:
        batch = reader.load(np.arange(150))
        assert np.flatnonzero(~batch.intact).tolist() == [*range(50, 100)]
        assert reader.load(np.arange(60, 62)).payloads == [bytes([62 + 38]) * 100] * 2
        assert reader.raw(60) == b""
    assert [batch[row] for row in (0, 149)] == [bytes([0]) * 100, bytes([149]) * 100]


def test_rows_whose_labels_are_damaged_are_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 50, a=BLOBS, b=[number + (5 << 40) for number in range(100)])
    flip(path, (70 + (5 << 40)).to_bytes(8, "little"))
    with pytest.raises(ds.CorruptRecordError, match="rows 50 to 99 .* cannot be read"):
        ds.Catalog.index(path)
    catalog = ds.Catalog.index(path, on_corrupt="mask")
    assert list(load(catalog)) == BLOBS[:50]
    assert 0.3 < catalog.lost_bytes / path.stat().st_size < 0.7


def test_an_intact_record_is_found_far_behind_damage(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", 10_000, a=[number.to_bytes(4, "big") for number in range(20_000)])
    flip(path, (5000).to_bytes(4, "big") + (4).to_bytes(4, "little") + (5001).to_bytes(4, "big"))
    with ds.RecordReader(ds.Catalog.index(path), on_corrupt="mask") as reader:
        batch = reader.load(np.arange(5000, 5010))
    assert not batch.intact.any()
    assert int.from_bytes(batch[0], "big") >= 10_000


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.parquet", a=BLOBS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ds.PlanError, match="pyarrow") as caught:
        ds.Catalog.index(path)
    assert "hvdtrain[parquet]" in caught.value.hint


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=12), st.integers(0, 1 << 30), st.booleans())
def test_garbage_is_refused_or_read_but_never_more(noise: bytes, at: int, cut: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "a.parquet", 2, a=BLOBS[:5], b=LABELS[:5])
        whole = path.read_bytes()
        at %= len(whole)
        path.write_bytes(whole[: at + 1] if cut else whole[:at] + noise + whole[at + len(noise) :])
        try:
            catalog = ds.Catalog.index(path)
            load(catalog)
        except (ds.CorruptRecordError, ds.MissingDataError, ds.ExampleError):
            return
        assert catalog.total_bytes <= path.stat().st_size
