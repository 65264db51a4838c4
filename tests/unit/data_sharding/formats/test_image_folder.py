"""Folders of images: the file is the payload, its folder the label, for every layout that is allowed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_sharding as ds
from data_sharding.catalog.cache import open_catalog
from data_sharding.formats.image_folder import ImageFolderFormat, class_names


def write(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"content of {name}".encode())


def read_back(catalog: ds.Catalog) -> dict[bytes, int]:
    with ds.RecordReader(catalog) as reader:
        batch = reader.load(np.arange(len(catalog)))
    assert batch.labels is not None
    return dict(zip(batch, batch.labels.tolist(), strict=True))


def test_images_of_nested_folders_get_the_label_of_their_class(tmp_path: Path) -> None:
    write(tmp_path, "cat/1.jpg", "cat/deep/er/2.PNG", "dog/1.webp", "ant/x.ppm", "dog/notes.txt", "dog/.hidden.jpg")
    (tmp_path / "bee").mkdir()
    (tmp_path / ".cache").mkdir()
    catalog = ds.Catalog.index(tmp_path)
    assert catalog.format == ImageFolderFormat(root=str(tmp_path))
    assert class_names(catalog) == ("ant", "bee", "cat", "dog")
    expected = {"ant/x.ppm": 0, "cat/1.jpg": 2, "cat/deep/er/2.PNG": 2, "dog/1.webp": 3}
    assert read_back(catalog) == {f"content of {name}".encode(): label for name, label in expected.items()}


NAMES = st.text("abcXYZ.-_0 é", min_size=1, max_size=4).filter(lambda name: not name.startswith("."))


@given(st.dictionaries(NAMES, st.sets(NAMES, min_size=1, max_size=3), min_size=2, max_size=5))
def test_labels_number_the_sorted_classes(folders: dict[str, set[str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), *(f"{name}/{image}.jpg" for name, images in folders.items() for image in images))
        catalog = ds.Catalog.index(folder)
        assert class_names(catalog) == tuple(sorted(folders))
        assert read_back(catalog) == {
            f"content of {name}/{image}.jpg".encode(): sorted(folders).index(name)
            for name, images in folders.items()
            for image in images
        }


def test_a_saved_catalog_keeps_labels_and_names(tmp_path: Path) -> None:
    write(tmp_path / "data", "a/1.jpg", "b/1.jpg")
    for record_format in (ImageFolderFormat(), ImageFolderFormat(classes=("b", "a", "c"))):
        catalog = ds.Catalog.index(tmp_path / "data", format=record_format)
        catalog.save(tmp_path / "saved.npz")
        loaded = ds.Catalog.load(tmp_path / "saved.npz")
        assert (loaded.format, loaded.fingerprint) == (catalog.format, catalog.fingerprint)
        assert class_names(loaded) == class_names(catalog)
        assert read_back(loaded) == read_back(catalog)


def test_validation_data_take_the_classes_of_the_training_data(tmp_path: Path) -> None:
    write(tmp_path / "train", "a/1.jpg", "b/1.jpg", "c/1.jpg")
    write(tmp_path / "valid", "c/2.jpg", "b/2.jpg")
    names = class_names(ds.Catalog.index(tmp_path / "train"))
    valid = ds.Catalog.index(tmp_path / "valid", format=ImageFolderFormat(classes=names))
    assert read_back(valid) == {b"content of b/2.jpg": 1, b"content of c/2.jpg": 2}
    assert class_names(valid) == names
    with pytest.raises(ds.MissingDataError, match="'c' .* classes are a, b"):
        ds.Catalog.index(tmp_path / "valid", format=ImageFolderFormat(classes=("a", "b")))
    with pytest.raises(ds.PlanError, match="twice"):
        ImageFolderFormat(classes=("a", "a"))


def test_one_class_alone_needs_a_root(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "a/2.jpg")
    assert read_back(ds.Catalog.index(tmp_path)) == {b"content of a/1.jpg": 0, b"content of a/2.jpg": 0}
    with pytest.raises(ds.MissingDataError, match="names? the classes") as caught:
        ds.Catalog.index(tmp_path / "a" / "*.jpg", format="image_folder")
    assert "option root" in caught.value.hint
    for root in (str(tmp_path), f"{tmp_path}/", os.path.relpath(tmp_path)):
        catalog = ds.Catalog.index(tmp_path, format=ImageFolderFormat(root=root))
        assert read_back(catalog) == {b"content of a/1.jpg": 0, b"content of a/2.jpg": 0}
        assert class_names(catalog) == ("a",)


def test_an_image_in_the_root_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "b/1.jpg", "stray.jpg")
    with pytest.raises(ds.MissingDataError, match=r"stray\.jpg is in no folder"):
        ds.Catalog.index(tmp_path)
    with pytest.raises(ds.MissingDataError, match="is in no folder"):
        ds.Catalog.index(tmp_path / "a", format=ImageFolderFormat(root=str(tmp_path / "b")))


def test_an_empty_image_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / "b" / "2.jpg").touch()
    with pytest.raises(ds.MissingDataError, match=r"2\.jpg is empty"):
        ds.Catalog.index(tmp_path)


def test_names_that_no_longer_fit_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "b/1.jpg", "c/1.jpg")
    catalog = ds.Catalog.index(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ds.ChangedDataError, match="empty folders"):
        class_names(catalog)


def test_remote_paths_are_labelled_like_local_ones() -> None:
    paths = ["s3://bucket/train/b/1.jpg", "s3://bucket/train/a/deep/2.jpg", "s3://bucket/train/ab/3.jpg"]
    assert ImageFolderFormat().file_labels(paths).tolist() == [2, 0, 1]
    assert ImageFolderFormat(root="s3://bucket/train").file_labels(paths[:1]).tolist() == [0]
    assert ImageFolderFormat(root="s3://bucket/").file_labels(paths).tolist() == [0, 0, 0]


def test_other_catalogs_have_no_class_names(catalog: ds.Catalog) -> None:
    with pytest.raises(ds.PlanError, match="tfrecord"):
        class_names(catalog)


def test_a_kept_catalog_has_the_labels_of_the_folders_that_are_there_now(tmp_path: Path) -> None:
    """An empty folder of a class is no file that a catalog lists."""
    root = tmp_path / "pictures"
    write(root, "cat/1.jpg", "dog/2.jpg")
    for change, expected in ((None, [0, 1]), ((root / "bird").mkdir, [1, 2]), ((root / "bird").rmdir, [0, 1])):
        if change is not None:
            change()
        catalog = open_catalog(root, cache_dir=tmp_path / "cache")
        assert catalog.labels is not None
        assert catalog.labels.tolist() == expected
        assert len(class_names(catalog)) == max(expected) + 1
