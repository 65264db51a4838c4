"""TensorFlow and we read and write the same files. It runs in a process of its own, once for this module."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import Forker

import data_sharding as ds

if importlib.util.find_spec("tensorflow") is None:
    pytest.skip("TensorFlow is not installed", allow_module_level=True)

EXAMPLES: list[dict[str, ds.example.FeatureInput]] = [
    {"image": np.arange(12, dtype=np.uint8).reshape(3, 4), "label": 3, "name": "drei"},
    {"pixels": np.linspace(-1, 1, 7), "raw": [b"\x00\xff", b""], "extremes": [-(2**63), 2**63 - 1, 0, -1]},
    {"empty_floats": np.zeros(0, np.float32), "empty_ints": np.zeros(0, np.int64), "nothing": [], "ü": 0.1},
    {},
]


@pytest.fixture(scope="module")
def folder(keras_forker: Forker, tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]) -> Path:
    """Our files, and beside them what TensorFlow made of them."""
    folder = tmp_path_factory.mktemp("tensorflow")
    examples = [ds.example.encode(features) for features in EXAMPLES]
    examples.append(ds.example.encode({"kept": np.float64([0.1, 2])}, keep_float64=True))
    for name, records in (("ours", payloads), ("examples", examples)):
        with ds.TFRecordWriter(folder / f"{name}.tfrecord") as writer:
            for record in records:
                writer.write(record)
    (folder / "payloads.json").write_text(json.dumps([payload.hex() for payload in payloads]))
    script = Path(__file__).with_name("tensorflow_peer.py")
    ended = keras_forker.run_python([str(script), str(folder)], folder)
    assert ended.code == 0, ended
    return folder


def read_all(path: Path) -> list[bytes]:
    catalog = ds.Catalog.index(path, check_data=True)
    with ds.RecordReader(catalog) as reader:
        return reader.read(np.arange(len(catalog)))


def test_tensorflow_reads_our_records(folder: Path, payloads: list[bytes]) -> None:
    assert [bytes.fromhex(record) for record in json.loads((folder / "read.json").read_text())] == payloads


def test_we_read_and_write_tensorflows_records_to_the_byte(folder: Path, payloads: list[bytes]) -> None:
    assert read_all(folder / "theirs.tfrecord") == payloads
    assert (folder / "theirs.tfrecord").read_bytes() == (folder / "ours.tfrecord").read_bytes()


def test_tensorflows_gzip_files_are_told_apart(folder: Path) -> None:
    with pytest.raises(ds.CorruptRecordError, match="random access"):
        ds.Catalog.index(folder / "gzipped.tfrecord")


def test_tensorflow_serializes_our_examples_to_the_same_bytes(folder: Path) -> None:
    assert read_all(folder / "reserialized.tfrecord") == read_all(folder / "examples.tfrecord")


def test_tensorflow_finds_the_values_that_we_find(folder: Path) -> None:
    kinds = {"i": "int64_list", "f": "float_list"}
    ours = []
    for record in read_all(folder / "reserialized.tfrecord"):
        features = {}
        for name, value in ds.example.decode(record).items():
            if isinstance(value, np.ndarray):
                read = (
                    value.astype(np.float32) if value.dtype == np.float64 else value
                )  # which TensorFlow does not know
                features[name] = [kinds[value.dtype.kind], read.tolist()]
            else:
                features[name] = ["bytes_list" if value else None, [item.hex() for item in value]]
        ours.append(features)
    assert ours == json.loads((folder / "parsed.json").read_text())
    assert [set(features) for features in ours] == [*(set(features) for features in EXAMPLES), {"kept"}]
