"""From names to files: links in circles, many ways to one file, names of other tools."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import data_sharding as ds
from data_sharding.convert import convert
from data_sharding.formats.image_folder import class_names
from data_sharding.storage.input_files import find_files

# Each link doubles the number of ways: to walk them all would take longer than the world has left.
pytestmark = pytest.mark.timeout(60)


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"picture")
    return path


def found(paths: str | Path | list[Path]) -> list[str]:
    return find_files(paths, ("*.jpg",), recursive=True)


@pytest.mark.parametrize("root", ["root", "link"])
@pytest.mark.parametrize("pattern", ["", "**", "**/*.jpg", "**/a/**/*.jpg"])
def test_links_to_folders_above_lead_nowhere(root: str, pattern: str, tmp_path: Path) -> None:
    expected = picture(tmp_path / "root" / "a" / "x.jpg")
    (tmp_path / "link").symlink_to("root")
    for number, target in enumerate(["..", "..", ".", "/", str(tmp_path)]):
        (tmp_path / "root" / f"up-{number}").symlink_to(target)
        (tmp_path / "root" / "a" / f"up-{number}").symlink_to(target)
    files = found(tmp_path / root / pattern)
    assert [os.path.realpath(file) for file in files] == [str(expected)]
    assert files == [str(tmp_path / root / "a" / "x.jpg")]


@pytest.mark.parametrize("pattern", ["", "**/*.jpg"])
def test_links_to_folders_elsewhere_are_followed(pattern: str, tmp_path: Path) -> None:
    picture(tmp_path / "disk" / "cats" / "x.jpg")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "linked").symlink_to(tmp_path / "disk")
    assert found(tmp_path / "root" / pattern) == [str(tmp_path / "root" / "linked" / "cats" / "x.jpg")]


@pytest.mark.parametrize("pattern", ["", "**/*.jpg"])
def test_a_folder_that_many_ways_lead_to_is_refused_soon(pattern: str, tmp_path: Path) -> None:
    folders = [tmp_path / "outside" / str(number) for number in range(60)]
    picture(folders[-1] / "x.jpg")
    for folder, target in zip(folders, [*folders[1:]], strict=False):
        for name in ("one", "two"):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(target)
    with pytest.raises(ds.PlanError, match=r"x\.jpg and .*x\.jpg are one file") as caught:
        found(folders[-30] / pattern)
    assert "copy" in caught.value.hint


def test_what_is_hidden_or_of_the_system_holds_no_data(tmp_path: Path) -> None:
    expected = picture(tmp_path / "a" / "x.jpg")
    hidden = (".cache", ".ipynb_checkpoints", "lost+found", "__MACOSX", "@eaDir", "#recycle", "$Recycle.Bin")
    for name in hidden:
        picture(tmp_path / name / "y.jpg")
        picture(tmp_path / "a" / name / "z.jpg")
    for name in (".DS_Store", "Thumbs.db", "desktop.ini", "._x.jpg"):
        picture(tmp_path / "a" / name)
    patterns = ("", "**/*.jpg", "*/*.jpg", "*/*", "**")
    assert [found(tmp_path / pattern) for pattern in patterns] == [[str(expected)]] * len(patterns)
    catalog = ds.Catalog.index(tmp_path)
    assert (len(catalog), class_names(catalog)) == (1, ("a",))
    for name in ("@eaDir", ".cache"):  # what is named is meant
        assert found(tmp_path / name) == found(tmp_path / name / "*.jpg") == [str(tmp_path / name / "y.jpg")]
        assert found(tmp_path / "*" / name / "*.jpg") == [str(tmp_path / "a" / name / "z.jpg")]
    assert found(tmp_path / "a" / "Thumbs.db") == [str(tmp_path / "a" / "Thumbs.db")]


@pytest.mark.parametrize("name", ["[2024] set", "a*b", "a?b", "what;is this", "**", "[!x]", "a]b[c"])
def test_a_folder_that_exists_is_literal_and_the_rest_is_a_pattern(name: str, tmp_path: Path) -> None:
    for other in ("azzb", "azb", "a", "2 set", "x"):
        picture(tmp_path / other / "deep" / "x.jpg")
        picture(tmp_path / other / "x.jpg")
    folder = tmp_path / name
    inside, deep = str(picture(folder / "x.jpg")), str(picture(folder / "deep" / "x.jpg"))
    assert found(folder / "*.jpg") == [inside]
    assert found(folder / "*" / "x.jpg") == found(folder / "d[e]ep" / "*.jpg") == [deep]
    assert found(folder) == found(folder / "**" / "*.jpg") == [deep, inside]
    assert found([folder / "x.jpg", folder / "de*" / "x.jpg"]) == [inside, deep]
    assert class_names(ds.Catalog.index(folder / "deep", format=ds.format_named("image_folder", {"root": str(folder)})))
    (folder / "x.jpg").unlink()
    assert class_names(ds.Catalog.index(folder)) == ("deep",)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_cannot_be_read_is_not_passed_over(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "x.jpg")
    (tmp_path / "b").mkdir(mode=0o000)
    for paths in (tmp_path, tmp_path / "**"):
        with pytest.raises(ds.MissingDataError, match="b cannot be read: Permission denied"):
            found(paths)


def test_copies_are_the_way_to_read_records_twice(tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "train", [b"one", b"two"], 1)
    (first,) = tmp_path.iterdir()
    again = tmp_path / "again.tfrecord"
    for make in (os.link, os.symlink):
        make(first, again)
        with pytest.raises(ds.PlanError, match="are one file") as caught:
            ds.Catalog.index(tmp_path)
        assert "copy" in caught.value.hint
        again.unlink()
    shutil.copy(first, again)
    assert len(ds.Catalog.index(tmp_path)) == 4


def test_a_link_to_itself_is_no_folder(tmp_path: Path) -> None:
    ds.write_shards(tmp_path, "train", [b"one"], 1)
    (tmp_path / "loop").symlink_to("loop")
    assert len(ds.Catalog.index(tmp_path)) == len(ds.Catalog.index(tmp_path / "**" / "*.tfrecord")) == 1
    for name in ("photos/a/x.jpg", "photos/b/y.jpg"):
        picture(tmp_path / name)
    (tmp_path / "photos" / "loop").symlink_to("loop")
    assert len(ds.Catalog.index(tmp_path / "photos")) == 2


@pytest.mark.parametrize("name", ["mnist-train.tfrecord-{:05d}-of-00002", "x.tfrecords-{:05d}-of-00002"])
def test_shards_named_as_beam_and_tfds_name_them_are_found(name: str, tmp_path: Path) -> None:
    for number in range(2):
        with ds.TFRecordWriter(tmp_path / name.format(number)) as writer:
            writer.write(bytes([number]))
    (tmp_path / "dataset_info.json").write_text("{}")
    (tmp_path / (name.format(0) + ".idx")).write_text("0 17\n")
    for paths in (tmp_path, tmp_path / name.format(0)):
        catalog = ds.Catalog.index(paths)
        assert (catalog.format.name, len(catalog)) == ("tfrecord", 2 if paths == tmp_path else 1)


def test_two_versions_of_one_file_are_refused(tmp_path: Path) -> None:
    rows = np.zeros((3, 3073), np.uint8).tobytes()
    for number in (1, 2):
        (tmp_path / f"data_batch_{number}.bin").write_bytes(rows)
    assert len(ds.Catalog.index(tmp_path)) == 6
    (tmp_path / "data_batch_2").write_bytes(rows)
    with pytest.raises(ds.PlanError, match=r"data_batch_2 and .*data_batch_2\.bin") as caught:
        ds.Catalog.index(tmp_path)
    assert "*.bin" in caught.value.hint
    assert len(ds.Catalog.index(tmp_path / "*.bin", format="cifar10")) == 6


def test_a_shard_beside_its_compressed_self_is_converted_once(tmp_path: Path) -> None:
    ds.write_shards(tmp_path / "data", "train", [b"one"], 1)
    (shard,) = (tmp_path / "data").iterdir()
    shutil.copy(shard, f"{shard}.gz")
    with pytest.raises(ds.PlanError, match=re.escape(f"{shard} and {shard}.gz")):
        convert(tmp_path / "data", tmp_path / "out", 1)


@pytest.mark.parametrize(
    ("name", "option", "text", "value"),
    [
        ("text", "window", "64", 64),
        ("text", "last", "0.5", 0.5),
        ("text", "last", 1, 1.0),
        ("tfrecord", "use_idx", "True", True),
        ("npz", "data", "5", "5"),
        ("image_folder", "classes", "cat,dog", ("cat", "dog")),
        ("image_folder", "classes", ["cat", "dog"], ("cat", "dog")),
    ],
)
def test_options_may_be_text(name: str, option: str, text: object, value: object) -> None:
    fitted = getattr(ds.format_named(name, {option: text}), option)
    assert (type(fitted), fitted) == (type(value), value)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("text", "window", "x"),
        ("text", "window", True),
        ("text", "window", 10**30),
        ("text", "last", None),
        ("mnist", "classes", "x"),
        ("tfrecord", "use_idx", "5"),
        ("npz", "data", 5),
        ("image_folder", "classes", 5),
    ],
)
def test_options_of_another_type_are_refused(name: str, option: str, value: object) -> None:
    with pytest.raises(ds.PlanError, match=f"{option}={re.escape(repr(value))}"):
        ds.format_named(name, {option: value})
