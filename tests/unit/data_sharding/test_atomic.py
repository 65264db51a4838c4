"""Files written whole or not at all: what stands under the name before is a file, or it stays as it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

import data_sharding as ds
from data_sharding.atomic import atomic_file


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root may make device nodes")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


ODD: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "socket": _socket,
    "device": _device,
    "folder": Path.mkdir,
    "link to itself": _loop,
}


def write(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_refused_and_stays(kind: str, linked: bool, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    ODD[kind](odd)
    before = os.lstat(odd)
    named = odd
    if linked:
        named = tmp_path / "link"
        named.symlink_to(odd)
    with pytest.raises(OSError, match="device, FIFO or socket|directory|symbolic links"):
        write(named, b"new")
    assert os.lstat(odd) == before
    assert named.is_symlink() == (linked or kind == "link to itself")
    assert len(list(tmp_path.iterdir())) == 1 + linked


@pytest.mark.parametrize("there", [False, True])
def test_a_link_is_written_through(there: bool, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    target, link = tmp_path / "far" / "target", tmp_path / "link"
    if there:
        target.write_bytes(b"old")
    link.symlink_to(Path("far") / "target")
    write(link, b"new")
    assert (link.is_symlink(), target.read_bytes()) == (True, b"new")
    with pytest.raises(TypeError, match="bytes"):
        write(link, "no bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"new"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["far", "link", "target"]


def test_writers_of_records_and_catalogs_write_so(tmp_path: Path) -> None:
    ds.write_shards(tmp_path / "data", "train", [b"x"], 1)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FileExistsError, match="FIFO"):
        ds.Catalog.index(tmp_path / "data").save(tmp_path / "fifo")
    with pytest.raises(FileExistsError, match="FIFO"), ds.TFRecordWriter(tmp_path / "fifo") as writer:
        writer.write(b"x")
