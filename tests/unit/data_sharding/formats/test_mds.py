"""Shards that mosaicml-streaming has written are read, and broken ones are refused or masked."""

from __future__ import annotations

import io
import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_sharding import Catalog, CorruptRecordError, MissingDataError, PlanError, RecordReader, example
from data_sharding.catalog.cache import open_catalog

SHARDS = sorted((Path(__file__).parents[1] / "fixtures").glob("mosaicml-*.mds"))


def samples(catalog: Catalog) -> list[dict[str, Any]]:
    with RecordReader(catalog) as reader:
        return [example.decode(record) for record in reader.read(np.arange(len(catalog)))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for shard in SHARDS:
        shutil.copy(shard, tmp_path)
    (tmp_path / "index.json").write_text("{}")
    return tmp_path


def test_samples_are_those_that_were_written(folder: Path) -> None:
    catalog = Catalog.index(folder, check_data=True)
    assert (catalog.format.name, len(catalog)) == ("mds", 7)
    for n, sample in enumerate(samples(catalog)):
        (picture,) = sample["image"]
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(picture))), np.full((2, 3, 3), n * 10))
        assert sample["label"].tolist() == [n - 3]
        assert sample["score"].tolist() == [n / 2]
        assert sample["wide"].tolist() == [n / 3]
        assert sample["text"] == [f"text {n} é".encode()]
        assert sample["raw"] == [bytes([n] * n)]
        assert json.loads(sample["meta"][0]) == {"n": n}
        assert sample["tokens"].reshape(sample["tokens.shape"]).tolist() == np.arange(2 * n + 2).reshape(2, -1).tolist()
        assert sample["pixels"].tolist() == [n] * 6
        assert sample["pixels.shape"].tolist() == [2, 3]


def shard(columns: list[tuple[str, str, int | None]], contents: list[bytes]) -> bytes:
    names, encodings, sizes = zip(*columns, strict=True)
    header = json.dumps({"column_names": names, "column_encodings": encodings, "column_sizes": sizes}).encode()
    first = 4 * (len(contents) + 2) + len(header)
    places = first + np.cumsum([0, *map(len, contents)])
    return struct.pack("<I", len(contents)) + places.astype("<u4").tobytes() + header + b"".join(contents)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (shard([("a", "pkl", None)], [struct.pack("<I", 1) + b"x"]), "written as pkl"),
        (shard([("a", "list[pil]", None)], [struct.pack("<I", 1) + b"x"]), r"written as list\[pil\]"),
        (shard([("a", "int", 8)], [bytes(8)])[:-1], "places of its samples"),
        (b"\x28\xb5\x2f\xfd" + bytes(30), "places of its samples"),
        (b"abc", "places of its samples"),
        (struct.pack("<III", 1, 14, 15) + b"{}x", "columns are not named"),
        (shard([("a", "ndarray:float32:2,l", None)], [struct.pack("<I", 1) + b"x"]), "columns are not named"),
    ],
)
def test_what_is_no_shard_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.mds").write_bytes(content)
    with pytest.raises(CorruptRecordError, match=words) as caught:
        Catalog.index(tmp_path)
    assert "HINT: " in str(caught.value)


@pytest.mark.parametrize(
    "content", [bytes(7), bytes(9), struct.pack("<I", 20) + bytes(8), struct.pack("<I", 1) + b"\xff" + bytes(8)]
)
def test_a_damaged_sample_is_named_and_masked(content: bytes, tmp_path: Path) -> None:
    sound = struct.pack("<I", 2) + b"ok" + bytes(8)
    text = [("t", "str", None), ("n", "int", 8)]
    (tmp_path / "a.mds").write_bytes(shard(text, [sound, content, sound]))
    catalog = Catalog.index(tmp_path)
    with (
        RecordReader(catalog) as reader,
        pytest.raises(CorruptRecordError, match="Record 1, in .*columns cannot be read"),
    ):
        reader.read(np.arange(3))
    with RecordReader(catalog, on_corrupt="mask") as reader:
        assert reader.load(np.arange(3)).intact.tolist() == [True, False, True]
    with pytest.raises(CorruptRecordError, match="sample 1"):
        Catalog.index(tmp_path, check_data=True)


@pytest.mark.parametrize("number", [1732981234.567891, 1e-300, -0.1])
def test_numbers_that_are_text_in_the_file_are_read_exactly(number: float, tmp_path: Path) -> None:
    content = struct.pack("<I", len(repr(number))) + repr(number).encode()
    (tmp_path / "a.mds").write_bytes(shard([("x", "str_float", None)], [content]))
    (sample,) = samples(Catalog.index(tmp_path))
    assert sample["x"].tolist() == [number]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ([("x", "int", 8), ("x", "float64", 8)], "two columns of the name 'x'"),
        ([("x", "ndarray:uint8:2,4", 8), ("x.shape", "int", 8)], "'x.shape' beside an array column 'x'"),
        ([("x.shape", "int", 8), ("x", "ndarray", 8)], "'x.shape' beside an array column 'x'"),
    ],
)
def test_a_column_that_another_would_replace_is_refused(
    columns: list[tuple[str, str, int | None]], words: str, tmp_path: Path
) -> None:
    (tmp_path / "a.mds").write_bytes(shard(columns, [bytes(16)]))
    with pytest.raises(CorruptRecordError, match=words) as caught:
        Catalog.index(tmp_path)
    assert "another name" in caught.value.hint


def test_a_column_that_no_shape_replaces_is_read(tmp_path: Path) -> None:
    columns = [("x", "ndarray:uint8:8", 8), ("x.shape", "int", 8)]
    (tmp_path / "a.mds").write_bytes(shard([*columns], [bytes(8) + struct.pack("<q", 3)]))
    (sample,) = samples(Catalog.index(tmp_path))
    assert sample["x.shape"].tolist() == [3]


@pytest.mark.parametrize(
    ("encoding", "content", "told"),
    [
        ("uint64", bytes([255] * 8), "'n' has the value 18446744073709551615"),
        ("ndarray:uint64:1", bytes([255] * 8), "'n' has the value 18446744073709551615"),
        ("str_int", b"%d" % 2**70, "'n' holds object values of int. tf.train.Example holds bytes, 64-bit integers"),
    ],
)
def test_a_number_that_no_example_holds_is_not_called_damage(
    encoding: str, content: bytes, told: str, tmp_path: Path
) -> None:
    (tmp_path / "a.mds").write_bytes(shard([("n", encoding, len(content))], [content]))
    with RecordReader(Catalog.index(tmp_path)) as reader, pytest.raises(CorruptRecordError) as read:
        reader.read(np.arange(1))
    with pytest.raises(CorruptRecordError) as indexed:
        Catalog.index(tmp_path, check_data=True)
    for error in (read.value, indexed.value):
        assert "cannot be used" in error.fact
        assert told in error.conflict
        assert error.hint.startswith("write the shards again with that column as str")


def test_shards_of_other_columns_are_no_one_data_set(tmp_path: Path) -> None:
    for name, kind in (("a", "int"), ("b", "uint8")):
        (tmp_path / f"{name}.mds").write_bytes(shard([("n", kind, 8 if kind == "int" else 1)], [bytes(8)]))
    with pytest.raises(PlanError, match=r"n \(int\).*n \(uint8\)"):
        Catalog.index(tmp_path)


def _list_shards(folder: Path, *names: str) -> None:
    """As MDSWriter does: names without compression, whether or not the shards have it."""
    shards = [
        {"format": "mds", "raw_data": {"basename": name}, "zip_data": {"basename": f"{name}.zstd"}} for name in names
    ]
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))


def test_a_folder_without_all_shards_of_its_index_is_refused(folder: Path, tmp_path: Path) -> None:
    _list_shards(folder, "mosaicml-0.mds", "mosaicml-1.mds")
    whole = open_catalog(folder, cache_dir=tmp_path / "kept")
    assert len(whole) == 7
    (folder / "mosaicml-1.mds").rename(folder / "mosaicml-1.mds.zstd")
    for read in (
        Catalog.index,
        Catalog.published,
        open_catalog,
        lambda path: Catalog.index(f"file://{path}", format="mds"),
    ):
        with pytest.raises(MissingDataError, match=r"lists 2 shards, and mosaicml-1\.mds is not there") as caught:
            read(folder)
        assert "decompress" in caught.value.hint
    assert len(Catalog.index(folder / "*.mds")) < 7


@pytest.mark.parametrize("content", ["", "[]", "{", '{"shards": [{}]}', '{"shards": 3}'])
def test_an_index_of_something_else_does_no_harm(content: str, folder: Path) -> None:
    (folder / "index.json").write_text(content)
    assert len(Catalog.index(folder)) == 7


@pytest.mark.parametrize("name", ["shard.00000.mds.zstd", "part-00000.array_record"])
def test_a_folder_of_other_files_is_refused_with_their_names(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    for folder in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(MissingDataError, match=rf"Its files are {name}") as caught:
            Catalog.index(folder)
        assert "compressed files are expanded first" in caught.value.hint
        assert "ArrayRecord" in caught.value.hint


@pytest.mark.parametrize("read", [lambda folder: Catalog.index(folder / "*.mds"), lambda folder: Catalog.index(folder)])
def test_names_suggest_the_format(read: Callable[[Path], Catalog], folder: Path) -> None:
    assert read(folder).format.name == "mds"
