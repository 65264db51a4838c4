"""`sourcedir.tar.gz`: the same bytes for the same files, and nothing from outside of the folder."""

from __future__ import annotations

import inspect
import os
import socket
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker import TrainingSpec, source_archive
from hvdtrain.launch.sagemaker.source_archive import source_files, write_source_archive
from hvdtrain.launch.sagemaker.spec import TASK_PROGRAM


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "src"
    (folder / "package" / "__pycache__").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    (folder / "package" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (folder / "package" / "task.py").write_text("print('task')\n")
    (folder / "run.sh").write_text("exec true\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "train.py").symlink_to("package/task.py")
    return folder


def spec(source: Path | None, **changes: Any) -> TrainingSpec:
    program = {} if "entry_point" in changes else {"task": "package.task:Mine"}
    return TrainingSpec(**{**program, "source_dir": None if source is None else str(source), **changes})


def members(path: Path) -> dict[str, tuple[bytes, int]]:
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            assert (member.mtime, member.uid, member.gid, member.uname, member.isreg()) == (0, 0, 0, "", True)
            found[member.name] = (content.read(), member.mode)
        return found


def test_the_files_of_the_folder_and_the_program(source: Path, tmp_path: Path) -> None:
    write_source_archive(spec(source), tmp_path / "a.tar.gz")
    found = members(tmp_path / "a.tar.gz")
    assert list(found) == sorted([TASK_PROGRAM, "package/task.py", "run.sh", "train.py"])
    assert found["train.py"] == found["package/task.py"] == (b"print('task')\n", 0o644)
    assert found["run.sh"][1] == 0o755
    assert b"hvdtrain.launch.sagemaker.train_entry" in found[TASK_PROGRAM][0]


def test_the_program_calls_what_there_is() -> None:
    names: dict[str, Any] = {"__name__": "program"}
    exec(source_archive.TASK_PROGRAM_TEXT, names)
    inspect.signature(names["main"]).bind()


def test_the_same_files_are_the_same_bytes(source: Path, tmp_path: Path) -> None:
    write_source_archive(spec(source), tmp_path / "a.tar.gz")
    os.utime(source / "run.sh", (time.time() + 100, time.time() + 100))
    (source / ".git" / "HEAD").write_text("x")
    write_source_archive(spec(source), tmp_path / "b.tar.gz")
    assert (tmp_path / "a.tar.gz").read_bytes() == (tmp_path / "b.tar.gz").read_bytes()


def test_an_entry_point_brings_no_program_of_ours(source: Path) -> None:
    assert TASK_PROGRAM not in source_files(spec(source, entry_point="package/task.py"))
    alone = spec(None, entry_point=str(source / "package" / "task.py"))
    assert list(source_files(alone)) == [alone.program] == ["task.py"]


def test_a_task_without_a_folder_brings_the_program_alone() -> None:
    assert list(source_files(spec(None, task="digits"))) == [TASK_PROGRAM]


def test_what_cannot_be_packed_is_refused(source: Path, tmp_path: Path) -> None:
    def refused(message: str, job: TrainingSpec) -> None:
        with pytest.raises(UsageError, match=message):
            source_files(job)

    refused("no folder", spec(tmp_path / "none"))
    refused("no file other.py in", spec(source, entry_point="other.py"))
    refused("no file nowhere.py here", spec(None, entry_point="nowhere.py"))
    (source / TASK_PROGRAM).touch()
    refused("rename yours", spec(source))
    (source / TASK_PROGRAM).unlink()
    (tmp_path / "secret").write_text("x")
    (source / "leak").symlink_to(tmp_path / "secret")
    refused("leak is a link to .*secret, outside", spec(source))
    (source / "leak").unlink()
    (source / "loop").symlink_to(source, target_is_directory=True)
    refused("a link to a folder. Of links, only those to files", spec(source))
    (source / "loop").unlink()
    (source / "inside").symlink_to("package", target_is_directory=True)
    refused("inside is a link to a folder", spec(source))
    (source / "inside").unlink()
    (source / "itself").symlink_to("itself")
    refused("itself is a link to itself, which leads to nothing", spec(source))
    (source / "itself").unlink()
    os.mkfifo(source / "pipe")
    refused("pipe is neither a file nor a folder", spec(source))
    (source / "pipe").unlink()
    (source / "gone").symlink_to("nothing")
    refused("gone is a link to nothing, which leads to nothing", spec(source))


def test_a_folder_that_is_a_file_or_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "itself").symlink_to("itself")
    for name in ("file", "itself"):
        with pytest.raises(UsageError, match=f"There is no folder .*{name}"):
            source_files(spec(tmp_path / name))


def test_a_socket_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("s")
        with pytest.raises(UsageError, match="neither a file nor a folder"):
            source_files(spec(source))


def test_data_do_not_belong_into_the_source(source: Path) -> None:
    with (source / "data.bin").open("wb") as file:
        file.truncate(source_archive.MAX_BYTES)  # sparse
    with pytest.raises(UsageError, match=r"256 MiB; its largest file is data\.bin"):
        source_files(spec(source))
