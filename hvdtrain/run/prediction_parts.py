"""Parts of a file of predictions, beside it until it is whole: each is written atomically, by rank 0."""

import io
import json
import logging
import shutil
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
from filelock import FileLock, Timeout

from data_sharding.atomic import atomic_file
from hvdtrain.errors import UsageError
from hvdtrain.files import write_atomically, write_json
from hvdtrain.run.prediction_files import Columns, Write, require_same_columns, shapes_of, write_npz

_PLAN, _LOCK = "predictions.json", ".lock"
_LOCK_SECONDS = 2.0  # processes that a killed command has forked may hold it a moment longer
_DAMAGED = (ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)
_log = logging.getLogger("hvdtrain.run")


class PredictionParts:
    """The folder OUTPUT.parts: what is predicted, and part-NNNNNN.npz for each group of steps that is done. `begin`
    holds it, until `release` or the end of the block."""

    def __init__(self, output: Path) -> None:
        self.output = output
        self.folder = output.with_name(f"{output.name}.parts")
        self._shapes: dict[str, tuple[int, ...]] | None = None  # of the columns, once a part is known
        self._lock = FileLock(self.folder / _LOCK, timeout=_LOCK_SECONDS)

    def begin(self, plan: Mapping[str, Any], force: bool) -> int:
        """Claim the folder for `plan`, which says everything that decides about the parts; returns how many parts are
        there already, up to one that is damaged. Raises UsageError: the output exists, or the parts are of something
        else, and not `force`; or another command is writing them."""
        if self.output.is_dir():
            raise UsageError(f"{self.output} is a folder.", "Predictions are a file.", "choose another --output.")
        if self.output.exists() and not force:
            raise UsageError(
                f"{self.output} is there already.", "It would be lost.", "choose another --output, or add --force."
            )
        try:
            if (self.folder / _PLAN).is_file():
                self._claim()
            if self.folder.exists() and (before := self._plan()) != plan:
                self._remove_others(force, _difference(before, plan))
            self.folder.mkdir(parents=True, exist_ok=True)
            self._claim()
            write_json(self.folder / _PLAN, plan)
        except OSError as error:
            raise unwritable_output(self.output, error) from error
        return next(number for number in range(10**9) if not self._is_whole(number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """End what `begin` began. May be called twice."""
        self._lock.release(force=True)

    def _claim(self) -> None:
        self.release()  # of a folder that was removed
        try:
            self._lock.acquire()
        except Timeout as error:
            raise UsageError(
                f"Another command is writing {self.output}.",
                f"Both would write the same parts into {self.folder.name}.",
                "wait until it has ended, or choose another --output.",
            ) from error

    def write(self, number: int, columns: Columns) -> None:
        """Raises UsageError: the part cannot be written, or has other columns than the first one; it is then not
        there."""
        if self._shapes is None:
            self._shapes = shapes_of(next(self._read(1)) if number else columns)
        require_same_columns(self._shapes, shapes_of(columns))
        content = io.BytesIO()
        write_npz(content, lambda: iter([columns]))
        try:
            write_atomically(self._path(number), content.getvalue())
        except OSError as error:
            raise unwritable_output(self.output, error) from error

    def records(self, count: int) -> tuple[int, int]:
        """How many records the parts 0 to `count` - 1 hold, and how many of them have logits that are NaN."""
        records = unknown = 0
        for columns in self._read(count):
            records += len(columns["id"])
            if "probability" in columns:
                is_nan = np.isnan(columns["probability"])
                unknown += int(is_nan.any(axis=tuple(range(1, is_nan.ndim))).sum())
        return records, unknown

    def join(self, count: int, write: Write) -> None:
        """Make the output of the parts 0 to `count` - 1, and remove them. Raises UsageError: it cannot be written."""
        try:
            with atomic_file(self.output) as file:
                write(file, lambda: self._read(count))
            self.release()  # NFS keeps open files under another name
            shutil.rmtree(self.folder)
        except OSError as error:
            raise unwritable_output(self.output, error) from error

    def _read(self, count: int) -> Iterator[Columns]:
        for number in range(count):
            try:
                with open(self._path(number), "rb") as file, np.load(file, allow_pickle=False) as part:
                    columns = {name: part[name] for name in part.files}
            except _DAMAGED as error:
                raise UsageError(
                    f"{self._path(number)} is damaged: {error}.",
                    "The output would lack its records.",
                    "remove this file, and start the same command again, which makes it again.",
                ) from error
            yield columns

    def _is_whole(self, number: int) -> bool:
        """Whether it is there, and begins and ends as a file of arrays: what is between is read in the end."""
        try:
            with open(self._path(number), "rb") as file, np.load(file, allow_pickle=False) as part:
                return "id" in part.files
        except FileNotFoundError:
            return False
        except _DAMAGED as error:
            _log.warning("%s is damaged (%s): it and what follows are predicted again", self._path(number), error)
            return False

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}.npz"

    def _plan(self) -> Any:
        try:
            return json.loads((self.folder / _PLAN).read_text())
        except (FileNotFoundError, ValueError):
            return None

    def _remove_others(self, force: bool, difference: str) -> None:
        if not (self.folder / _PLAN).is_file():
            if self.folder.is_dir() and all(entry.name.startswith(".") for entry in self.folder.iterdir()):
                return  # a command was killed before it wrote its plan
            raise UsageError(
                f"{self.folder} is there already, and is no folder of predictions.",
                "Parts of the predictions are kept in a folder of this name.",
                "remove it, or choose another --output.",
            )
        if not force:
            raise UsageError(
                f"{self.folder} holds parts of other predictions.",
                difference,
                "choose another --output, or add --force to begin again.",
            )
        self.release()
        shutil.rmtree(self.folder)


def _difference(before: Any, plan: Mapping[str, Any]) -> str:
    if isinstance(before, dict):
        others = [name for name in before.keys() | plan.keys() if before.get(name) != plan.get(name)]
        if others == ["records_a_part"]:  # there are more workers than records in a part of fewer ones
            return f"They hold {before[others[0]]} records each, and so many workers make parts of {plan[others[0]]}."
    return "They are of another checkpoint, of other records, of other options, or of a task that was edited."


def unwritable_output(output: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{output} cannot be written: {error.strerror or error}.",
        "Parts that are complete stay beside it.",
        "make room or give the rights, and start the same command again, which goes on from there; or choose another "
        "--output.",
    )
