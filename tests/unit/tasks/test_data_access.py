"""What a task names in its data folder is found there, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import fsspec
import numpy as np
import pytest

from data_sharding import MissingDataError
from hvdtrain.task.data_access import DataAccess


def rows(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, np.zeros((count, 1), np.uint8))


@pytest.mark.parametrize("folder", ["a*b", "a?b", "[ax]b", "set; [2024]"])
def test_the_data_folder_is_literal_and_the_name_is_a_pattern(folder: str, tmp_path: Path) -> None:
    for other in ("azzb", "azb", "ab", "xb", "set; 2"):
        rows(tmp_path / other / "train-1.npy", 100)
        rows(tmp_path / other / "validation.npy", 100)
    rows(tmp_path / folder / "train-1.npy", 30)
    rows(tmp_path / folder / "train-2.npy", 7)
    data = DataAccess(str(tmp_path / folder), tmp_path / "cache")
    assert len(data.catalog("train*.npy")) == len(data.catalog()) == 37
    assert len(data.catalog("train-2.npy")) == 7
    with pytest.raises(MissingDataError):
        data.catalog("validation.npy")


def test_so_it_is_behind_a_url(tmp_path: Path) -> None:
    fs = fsspec.filesystem("memory")
    for folder, count in (("a*b", 37), ("azzb", 100)):
        rows(tmp_path / "rows.npy", count)
        fs.pipe(f"/literal/{folder}/train.npy", (tmp_path / "rows.npy").read_bytes())
    try:
        data = DataAccess("memory://literal/a*b", tmp_path / "cache")
        assert len(data.catalog("train*.npy")) == len(data.catalog("train.npy")) == 37
        assert len(DataAccess("memory://literal", tmp_path / "cache").catalog("a*/train.npy")) == 137
    finally:
        fs.rm("/literal", recursive=True)
