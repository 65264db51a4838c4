"""Rows of numpy's arrays: whatever numpy writes uncompressed is read in place, and nothing is unpickled."""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import data_sharding as ds
from data_sharding.formats.numpy_arrays import NumpyFormat, decode_rows, row_type

X = np.random.default_rng(5).normal(size=(11, 3, 2)).astype(np.float32)
Y = (np.arange(11) * 3 % 7).astype(np.int32)


def read_back(catalog: ds.Catalog) -> dict[str, NDArray[Any]]:
    with ds.RecordReader(catalog) as reader:
        return decode_rows(reader.load(np.arange(len(catalog))), *row_type(catalog))


DTYPES = st.one_of(
    hnp.integer_dtypes(),
    hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(),
    hnp.complex_number_dtypes(),
    hnp.boolean_dtypes(),
    hnp.datetime64_dtypes(),
    hnp.byte_string_dtypes(min_len=1),
    hnp.unicode_string_dtypes(min_len=1),
    hnp.array_dtypes(max_size=3),
)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=1, max_dims=3, max_side=5))


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@settings(max_examples=150, deadline=None)
@given(ARRAYS, st.booleans())
def test_every_array_comes_back_row_by_row(array: NDArray[Any], alone: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("a.npy" if alone else "a.npz")
        if alone:
            np.save(path, array)
        else:
            np.savez(path, array)
        if array.dtype.hasobject:
            with pytest.raises(ds.CorruptRecordError, match="objects"):
                ds.Catalog.index(path)
            return
        catalog = ds.Catalog.index(path, check_data=True)
        assert row_type(catalog) == (array.dtype, array.shape[1:])
        back = read_back(catalog)
    assert back["data"].tobytes() == array.tobytes()
    assert back["data"].shape == array.shape
    assert "label" not in back


@given(hnp.arrays(st.one_of(hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(sizes=(8, 16, 32))), st.integers(1, 9)))
def test_labels_of_every_integer_type(labels: NDArray[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        np.savez(path, images=np.zeros((len(labels), 2)), answers=labels)
        catalog = ds.Catalog.index(path)
    assert catalog.labels is not None
    assert catalog.labels.tolist() == labels.tolist()


def test_several_files_are_one_data_set(tmp_path: Path) -> None:
    np.savez(tmp_path / "1.npz", x=X[:4], y=Y[:4])
    np.savez(tmp_path / "2.npz", x=X[4:], y=Y[4:])
    catalog = ds.Catalog.index(tmp_path)
    assert catalog.format == NumpyFormat()
    back = read_back(catalog)
    np.testing.assert_array_equal(back["data"], X)
    assert back["label"].tolist() == Y.tolist()


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": X}, r"a\.npz has labels y, .*b\.npz has not"),
        ({"x": X.astype(np.float64), "y": Y}, r"a\.npz has rows of x float32\[3, 2\], .*b\.npz has rows of x float64"),
        ({"x": X[:, :2], "y": Y}, r"b\.npz has rows of x float32\[2, 2\]"),
        ({"z": X, "y": Y}, r"b\.npz has rows of z"),
        ({"x": X, "w": Y}, r"a\.npz has labels y, .*b\.npz has labels w"),
    ],
)
@pytest.mark.parametrize("on_corrupt", ["raise", "mask"])
def test_files_with_other_arrays_are_refused(
    tmp_path: Path, other: dict[str, Any], message: str, on_corrupt: Any
) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y)
    np.savez(tmp_path / "b.npz", **other)
    with pytest.raises(ds.PlanError, match=message) as caught:
        ds.Catalog.index(tmp_path, on_corrupt=on_corrupt)
    assert "belong together" in caught.value.hint


def test_arrays_beside_those_that_are_read_may_differ(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X, y=Y, mean=np.zeros(3))
    np.savez(tmp_path / "b.npz", x=X, y=Y.astype(np.uint8))
    assert len(ds.Catalog.index(tmp_path, format=NumpyFormat(data="x"))) == 2 * len(X)


@pytest.mark.parametrize(
    ("arrays", "options", "chosen"),
    [
        ({"x": X}, {}, ("x", None)),
        ({"y": Y}, {}, ("y", None)),
        ({"x": X, "y": Y}, {}, ("x", "y")),
        ({"y": Y, "x": X, "mean": X[0]}, {}, ("x", "y")),
        ({"x": X, "y": Y, "z": Y + 1}, {"data": "x", "labels": "z"}, ("x", "z")),
        ({"x": X, "w": X + 1, "y": Y}, {"data": "w"}, ("w", "y")),
        ({"x": X, "w": X + 1}, {"data": "w"}, ("w", None)),
        ({"x": X, "y": Y, "u": X[:5], "v": Y[:5]}, {"data": "u"}, ("u", "v")),
        ({"x": X, "y": Y, "u": X[:5], "v": Y[:5]}, {"labels": "y"}, ("x", "y")),
        ({"x": Y + 1, "y": Y}, {"data": "x", "labels": "y"}, ("x", "y")),
    ],
)
def test_arrays_are_chosen_where_they_are_clear(
    tmp_path: Path, arrays: dict[str, NDArray[Any]], options: dict[str, Any], chosen: tuple[str, str | None]
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    data, labels = chosen
    back = read_back(ds.Catalog.index(tmp_path, format=NumpyFormat(**options)))
    np.testing.assert_array_equal(back["data"], arrays[data])
    assert ("label" in back) == (labels is not None)
    assert labels is None or back["label"].tolist() == arrays[labels].tolist()


@pytest.mark.parametrize(
    ("arrays", "options"),
    [
        ({"x": X, "w": X}, {}),
        ({"x": X, "y": Y, "u": X[:5], "v": Y[:5]}, {}),
        ({"x": X, "y": Y, "z": Y}, {}),
        ({"x": X, "y": Y, "z": Y}, {"data": "x"}),
        ({"x": X, "y": Y, "z": Y}, {"labels": "z"}),
        ({"x": Y + 1, "y": Y}, {}),
        ({"x": X, "y": Y}, {"data": "absent"}),
        ({"x": X, "y": Y}, {"labels": "absent"}),
        ({"x": X, "y": Y[1:]}, {"labels": "y"}),
        ({"x": X, "y": Y.astype(float)}, {"labels": "y"}),
        ({"x": X, "y": Y}, {"data": "x", "labels": "x"}),
        ({"scalar": np.float32(1)}, {}),
        ({}, {}),
    ],
)
def test_unclear_choices_are_refused_with_what_there_is(
    tmp_path: Path, arrays: dict[str, Any], options: dict[str, Any]
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ds.MissingDataError, match="options data and labels") as caught:
        ds.Catalog.index(tmp_path, format=NumpyFormat(**options))
    for name, array in arrays.items():
        assert f"{name} {array.dtype}{list(array.shape)}" in caught.value.conflict


def saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def compressed(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


def single(array: NDArray[Any], version: tuple[int, int] | None = None) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


def header(text: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (compressed(x=X), "savez instead of numpy.savez_compressed"),
        (compressed(x=X, y=Y, u=X, v=Y), "savez instead of numpy.savez_compressed"),
        (saved(x=np.asfortranarray(X)), "ascontiguousarray"),
        (single(np.asfortranarray(X)), "ascontiguousarray"),
        (saved(x=np.array([{}, {}])), "unpickled"),
        (saved(x=np.zeros((5, 0))), "no bytes"),
        (saved(x=X, y=np.array([2**63] * 11, np.uint64)), "beyond 64 bits"),
        (single(X)[:-1], "bytes of it"),
        (single(X) + b"x", "bytes of it"),
        (single(X)[:9], "expected"),
        (single(X)[:40], "announces"),
        (saved(x=X)[:-30], "damaged zip"),
        (b"PK\x03\x04" + bytes(100), "damaged zip"),
        (b"no numpy file", "expected"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387903, 0), }"), "no bytes"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999999,), }", bytes(8)), "bytes of it"),
        (header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"), "cannot be read"),
        (header("{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }"), "cannot be read"),
        (header("__import__('os')"), "cannot be read"),
        (header("(" * 5000), "cannot be read"),
        (header("-" * 60000), "cannot be read"),
        (header("[" * 90 + "]" * 90), "cannot be read"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(50), "announces 4294967295"),
    ],
)
def test_arrays_that_cannot_be_read_in_place_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(ds.CorruptRecordError, match=re.escape(message)) as caught:
        ds.Catalog.index(path)
    assert caught.value.path == str(path)


def test_newer_headers_and_big_endian_values(tmp_path: Path) -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        (tmp_path / "a.npy").write_bytes(single(X.astype(">f8"), version))
        np.testing.assert_array_equal(read_back(ds.Catalog.index(tmp_path))["data"], X.astype(np.float64))


def test_a_member_with_extra_fields_and_others_before_it(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("notes.txt", "hello")
        info = zipfile.ZipInfo("x.npy")
        info.extra = b"\xfe\xca\x04\x00four"
        archive.writestr(info, single(X))
    np.testing.assert_array_equal(read_back(ds.Catalog.index(tmp_path))["data"], X)


def test_damage_is_found_on_request(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[content.index(X[5].tobytes())] ^= 1
    path.write_bytes(content)
    assert len(ds.Catalog.index(path)) == 11
    with pytest.raises(ds.CorruptRecordError, match="x float32.* does not match the zip's CRC"):
        ds.Catalog.index(path, check_data=True)


def test_decoding_checks_lengths(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=X)
    catalog = ds.Catalog.index(tmp_path)
    with ds.RecordReader(catalog) as reader:
        batch = reader.load(np.arange(3))
    assert decode_rows(batch, "<f4", (6,))["data"].flags.writeable
    with pytest.raises(ds.PlanError, match="row_type"):
        decode_rows(batch, "<f8", (6,))


WHOLE = [saved(x=X, y=Y), single(X), compressed(x=X), b"\x93NUMPY\x01\x00" + bytes(80), b"PK\x03\x04" + bytes(100)]


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(WHOLE), st.binary(min_size=1, max_size=12), st.integers(0, 1 << 30), st.booleans())
def test_garbage_is_refused_or_read_but_never_more(whole: bytes, noise: bytes, at: int, cut: bool) -> None:
    at %= len(whole)
    content = whole[: at + 1] if cut else whole[:at] + noise + whole[at + len(noise) :]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.npz"
        path.write_bytes(content)
        try:
            catalog = ds.Catalog.index(path)
        except (ds.CorruptRecordError, ds.MissingDataError):
            return
        assert int(catalog.offsets[-1] + catalog.lengths[-1]) <= len(content)


def test_an_array_without_a_name_is_named_once(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(np.zeros((2, 3), np.uint8)))
    with pytest.raises(ds.CorruptRecordError, match=r"The array uint8\[2, 3\] of .* is kept column by column"):
        ds.Catalog.index(tmp_path / "a.npy")


@pytest.mark.parametrize("kind", ["<f8", ">i2", "<i8"])
def test_rows_are_decoded_without_being_told_their_type(kind: str, tmp_path: Path) -> None:
    rows = np.arange(24).reshape(4, 3, 2).astype(kind)
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "b.npz", image=rows, number=np.arange(4))
    for name in ("a.npy", "b.npz"):
        catalog = ds.Catalog.index(tmp_path / name)
        plan = ds.ShardPlan.for_catalog(catalog, global_batch=2, seed=0, epoch=0, shuffle="none")
        with ds.RecordReader(catalog) as reader:
            batches = list(ds.ShardLoader(plan, reader, decode_rows, rank=0, size=1))
        data = np.concatenate([batch.features["data"] for batch in batches])
        assert (batches[0].features["data"].dtype, data.tolist()) == (rows.dtype, rows.tolist())
        assert ("label" in batches[0].features) == (name == "b.npz")


def test_rows_of_other_records_need_their_type(catalog: ds.Catalog, tmp_path: Path) -> None:
    with ds.RecordReader(catalog) as reader:
        for records in (reader.load(np.arange(2)), ds.RecordBatch([b"12"], np.arange(1), None, np.ones(1, np.bool_))):
            with pytest.raises(ds.PlanError, match="without dtype and shape"):
                decode_rows(records)
    np.save(tmp_path / "a.npy", np.zeros((2, 3)))
    with ds.RecordReader(ds.Catalog.index(tmp_path / "a.npy")) as reader:
        assert decode_rows(reader.load(np.arange(2)).only(1), "u1", (24,))["data"].shape == (1, 24)
        assert decode_rows(reader.load(np.arange(2)), shape=(3, 1))["data"].shape == (2, 3, 1)
        with pytest.raises(ds.PlanError, match="rows of float32"):
            decode_rows(reader.load(np.arange(2)), "f4")
