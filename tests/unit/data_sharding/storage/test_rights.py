"""What this user may not read is told from what is not there, and from what has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rights import no_root, public_folder

import data_sharding as ds


@pytest.fixture
def folder() -> Iterator[Path]:
    """With files of records, in a place that everybody reaches."""
    with public_folder() as place:
        inside = place / "records"
        ds.write_shards(inside, "train", [b"a", b"b"], 1)
        yield inside
        inside.chmod(0o755)


@pytest.mark.parametrize("name", ["train-*.tfrecord", "train-00000-of-00001.tfrecord", ""])
def test_a_folder_without_rights_is_named(name: str, folder: Path) -> None:
    folder.chmod(0)
    with no_root(), pytest.raises(ds.MissingDataError, match=f"{folder} cannot be read: Permission denied"):
        ds.Catalog.index(str(folder / name))


def test_a_name_that_is_not_there_needs_no_list_of_its_folder(folder: Path) -> None:
    folder.chmod(0o711)
    with no_root():
        with pytest.raises(ds.MissingDataError, match="none/train.tfrecord does not exist"):
            ds.Catalog.index(str(folder / "none" / "train.tfrecord"))
        with pytest.raises(ds.MissingDataError, match="cannot be read: Permission denied"):
            ds.Catalog.index(str(folder / "train-*"))


def test_a_file_without_rights_has_not_changed(folder: Path) -> None:
    catalog = ds.Catalog.index(folder)
    Path(catalog.files[0].path).chmod(0)
    with (
        no_root(),
        ds.RecordReader(catalog) as reader,
        pytest.raises(ds.MissingDataError, match="cannot be opened: Permission denied"),
    ):
        reader.read([0])
