"""`sourcedir.tar.gz`, the source of a job: the same bytes for the same files.

Nothing from outside the folder is packed: a link that leads out of it is refused, and so is what is not a file.
"""

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.launch.sagemaker.spec import TASK_PROGRAM, TrainingSpec

MAX_BYTES = 256 * 2**20  # of all files together; more is most likely data, which belong in a channel
LEFT_OUT = frozenset({".git", ".hg", ".svn", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"})
"""Names of folders that hold no source."""

TASK_PROGRAM_TEXT = '''\
"""What SageMaker's training toolkit runs in each worker: `hvdtrain train`, with the hyperparameters as options."""

from hvdtrain.launch.sagemaker.train_entry import main

if __name__ == "__main__":
    raise SystemExit(main())
'''


def write_source_archive(spec: TrainingSpec, path: Path) -> None:
    files = source_files(spec)
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(files):
            _add(archive, name, files[name])


def source_files(spec: TrainingSpec) -> dict[str, Path | bytes]:
    """Name in the archive → file, or its content. Raises UsageError: the folder, the entry point or the task's module
    is not there, a link leads out of the folder, something is neither file nor folder, or all are more than
    `MAX_BYTES`."""
    files: dict[str, Path | bytes] = {}
    if spec.source_dir is not None:
        folder = Path(spec.source_dir).expanduser().absolute()
        files.update({path.relative_to(folder).as_posix(): path for path in _walk(folder)})
    elif spec.entry_point is not None:
        script = Path(spec.entry_point).expanduser().absolute()
        files.update({script.name: script} if script.is_file() else {})
    _require_program(spec, files)
    if spec.task is not None:
        _require_module(spec, files.keys())
        files[TASK_PROGRAM] = TASK_PROGRAM_TEXT.encode()
    _require_size(spec, files)
    return files


def _walk(folder: Path) -> Iterator[Path]:
    if not os.path.isdir(folder):  # which takes names of any length
        raise UsageError(
            f"There is no folder {folder}.", "It was given as source_dir.", "check the path, or leave it out."
        )
    inside = Path(os.path.realpath(folder))  # `resolve` raises RuntimeError for a link to itself

    def fail(error: OSError) -> None:
        raise UsageError(
            f"{error.filename} cannot be read: {error.strerror}.", "It is in source_dir.", "check who may read it."
        ) from error

    for here, folders, names in os.walk(folder, onerror=fail):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        for path in (Path(here) / name for name in folders):
            if path.is_symlink():
                raise UsageError(
                    f"{path} is a link to a folder.",
                    "Of links, only those to files of source_dir are packed: folders could come twice, or lead in a "
                    "circle.",
                    "put a copy of the folder in its place, or import from the folder itself.",
                )
        for path in (Path(here) / name for name in names):
            _require_file(path, inside)
            yield path


def _require_file(path: Path, inside: Path) -> None:
    target = Path(os.path.realpath(path))
    if path.is_symlink() and not path.exists():
        raise _not_packed(path, f"a link to {path.readlink()}, which leads to nothing")
    if not target.is_relative_to(inside):
        raise _not_packed(path, f"a link to {target}, outside of the folder")
    if not path.is_file():
        raise _not_packed(path, "neither a file nor a folder")


def _not_packed(path: Path, what: str) -> UsageError:
    return UsageError(
        f"{path} is {what}.",
        "source_dir is packed for other machines, which get the files that are in it and nothing else.",
        "put a copy there, or choose another source_dir.",
    )


def _require_program(spec: TrainingSpec, files: dict[str, Path | bytes]) -> None:
    if spec.task is not None and TASK_PROGRAM in files:
        raise UsageError(
            f"source_dir has a file {TASK_PROGRAM}.", "That is the name of what starts the task.", "rename yours."
        )
    if spec.entry_point is not None and spec.program not in files:
        where = f"in {spec.source_dir}" if spec.source_dir is not None else "here"
        raise UsageError(
            f"There is no file {spec.entry_point} {where}.", "It was given as entry_point.", "check the path."
        )


def _require_module(spec: TrainingSpec, files: Collection[str]) -> None:
    module, colon, name = str(spec.task).partition(":")
    if not colon or module.startswith("hvdtrain."):
        return
    path = module.replace(".", "/")
    if not (module and name):
        raise UsageError(f"The task is {spec.task!r}.", "That is not module:Class.", "write e.g. my_task:MyTask.")
    if f"{path}.py" not in files and f"{path}/__init__.py" not in files:
        where = f"in {spec.source_dir}" if spec.source_dir is not None else "and no source_dir"
        raise UsageError(
            f"The task is {spec.task!r}, and there is no {path}.py {where}.",
            "Workers import the task's module from the folder that comes along.",
            "give its folder as source_dir (--source-dir); for a class of a package in your image, put a module there "
            "that imports it.",
        )


def _require_size(spec: TrainingSpec, files: dict[str, Path | bytes]) -> None:
    sizes = {name: len(file) if isinstance(file, bytes) else file.stat().st_size for name, file in files.items()}
    if sum(sizes.values()) > MAX_BYTES:
        largest = max(sizes, key=lambda name: sizes[name])
        raise UsageError(
            f"{spec.source_dir} has {sum(sizes.values()) / 2**20:.0f} MiB; its largest file is {largest}.",
            f"The source of a job may have {MAX_BYTES // 2**20} MiB.",
            "give data as a channel, and keep them out of source_dir.",
        )


def _add(archive: tarfile.TarFile, name: str, file: Path | bytes) -> None:
    content, mode = (file, 0) if isinstance(file, bytes) else (file.read_bytes(), file.stat().st_mode)
    member = tarfile.TarInfo(name)  # time, owner and group stay 0
    member.mode = 0o755 if mode & stat.S_IXUSR else 0o644
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
