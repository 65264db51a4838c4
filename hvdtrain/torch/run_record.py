"""`with hvd.run(folder) as run`: a run folder with metrics and a report, for a loop that hvdtrain does not run."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import yaml
from horovod.common.exceptions import HostsUpdatedInterrupt
from horovod.torch import mpi_ops

from hvdtrain.comm.messages import agree
from hvdtrain.errors import RESUMABLE, UsageError
from hvdtrain.files import finite, open_lines, unwritable, write_atomically, write_json
from hvdtrain.measured import LINE_KEYS
from hvdtrain.run.ending import write_report
from hvdtrain.run.result import environment
from hvdtrain.run.run_folder import RunFolder
from hvdtrain.task.task import refuse_taken
from hvdtrain.torch.mean import Mean
from hvdtrain.torch.start import start_count
from hvdtrain.torch.world import communicator
from hvdtrain.version import versions
from hvdtrain.world_channel import CHANGE

_log = logging.getLogger("hvdtrain")

Value = Mean | float
"""A number, of which rank 0's is written, or a mean, which is computed over all ranks and begins again."""


_TAKEN: Final = LINE_KEYS - {"samples"}  # of which a loop may know how many there were


class Run:
    """What `run` gives: lines of metrics. Call the methods on all ranks."""

    def __init__(self, folder: Path, open_file: Callable[[], TextIO], step: int) -> None:
        self.folder, self.step = folder, step
        self._size = 1
        self._validated: Mapping[str, float] = {}
        self._open = open_file
        self._file: TextIO | None = None
        self._world, self._writes = 0, False

    @property
    def writes(self) -> bool:
        """Whether this rank does. In an elastic job another one may, after a loss."""
        if self._world != start_count():
            self._world, self._writes, self._size = start_count(), mpi_ops.rank() == 0, mpi_ops.size()
        if self._writes and self._file is None:
            self._file = self._open()
        return self._writes

    def log(self, step: int, *, epoch: int = 0, **values: Value) -> dict[str, float]:
        """Write metrics of training after update `step`; returns them as numbers. Collective where there are means."""
        return self._log("train", step, epoch, values)

    def log_validation(self, step: int, *, epoch: int = 0, **values: Value) -> dict[str, float]:
        """Write metrics of a validation after update `step`; returns them as numbers."""
        numbers = self._log("validation", step, epoch, values)
        self._validated = dict(numbers)
        return numbers

    def _log(self, split: str, step: int, epoch: int, values: Mapping[str, Value]) -> dict[str, float]:
        refuse_taken(_TAKEN.intersection(values), "A metric is called")
        self.step, numbers = step, {name: _number(value) for name, value in values.items()}
        self.write({"split": split, "epoch": epoch, "step": step, **numbers})
        return numbers

    def result(self, finished: bool) -> dict[str, Any]:
        """Content of result.json: those of a `Task`'s run that are known. `metrics` are of the last validation."""
        return {
            "status": "finished" if finished else "stopped",
            "framework": "torch",
            "world_size": self._size,
            "steps": self.step,
            "metrics": finite(self._validated),
            "versions": versions(),
        }

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line to metrics.jsonl, on rank 0."""
        if self.writes and self._file is not None:
            self._file.write(json.dumps(finite({**line, "time": round(time.time(), 3)}), allow_nan=False) + "\n")
            self._file.flush()


@contextmanager
def run(
    folder: str | Path, config: Mapping[str, Any] | None = None, step: int = 0, report: bool = True
) -> Iterator[Run]:
    """Keep a run folder: config.yaml, env.json, metrics.jsonl, and at the block's end result.json and report.html.

    `hvdtrain ls`, `compare` and `report` read such a folder as that of a `Task`. A folder that has metrics already is
    continued: give the same one after a restart. Enter it on all ranks; rank 0 writes.

        with hvd.run("runs/mine", config=vars(options)) as run:
            run.log(step, loss=loss, lr=0.1)

    Args:
        config: what was chosen, of numbers, texts and collections of them.
        step: updates that were done before, as `Checkpoint.restore` returns them.
        report: draw report.html at the end.

    Raises:
        UsageError: on all ranks, in an elastic job on rank 0; another job is running in the folder, or it cannot be
            written.
    """
    comm, begun = communicator("hvd.run"), time.time()
    place = RunFolder(Path(folder).absolute(), keep_checkpoints=1)
    with ExitStack() as stack:
        record = Run(place.path, lambda: _opened(place, config or {}, stack), step)
        if os.environ.get("HOROVOD_ELASTIC") == "1":
            _ = record.writes  # a worker that joins enters alone
        else:
            agree(comm, lambda: record.writes, "hvdtrain.run.folder")
        record.write({"event": "resumed" if step else "started", "step": step, "begun": round(begun, 3)})
        leaving: BaseException | None = None
        try:
            yield record
        except BaseException as error:
            leaving = error
        end = _end(leaving)
        record.write({**end, "step": record.step})
        if record.writes and end["event"] == "ended":
            try:
                write_json(place.result, record.result(bool(end["finished"])))
            except OSError as error:  # a full disk does not change how the loop has ended
                _log.warning("%s was not written: %s.", place.result, error.strerror or error)
            if report:
                write_report(place.path, "always", time.time() - begun)
        if leaving is not None:
            raise leaving


def _end(leaving: BaseException | None) -> Mapping[str, Any]:
    """The line of metrics about the end of the block, which `leaving` has ended."""
    code = leaving.code or 0 if isinstance(leaving, SystemExit) else None
    if leaving is None or code == 0:
        return {"event": "ended", "finished": True}
    if code == RESUMABLE:
        return {"event": "ended", "finished": False, "stopped_by": "a request to stop"}
    if isinstance(leaving, HostsUpdatedInterrupt):
        return {"event": "ended", "finished": False, "stopped_by": CHANGE}
    return {"event": "failed", "error": f"{type(leaving).__name__}: {leaving}"}


def _opened(place: RunFolder, config: Mapping[str, Any], stack: ExitStack) -> TextIO:
    """Rank 0's file of metrics, in a folder that no other job uses."""
    try:
        place.path.mkdir(parents=True, exist_ok=True)
        place.claim()
        stack.callback(place.release)
        write_atomically(place.config, yaml.safe_dump(dict(config), sort_keys=False).encode())
        write_json(place.env, {**environment(communicator("hvd.run").topology), "hosts": []})
        return stack.enter_context(open_lines(place.metrics))
    except OSError as error:
        raise unwritable(place.path, error) from error
    except yaml.YAMLError as error:
        raise UsageError(
            f"config cannot be written as YAML: {str(error).splitlines()[0]}.",
            "config.yaml holds numbers, texts and collections of them.",
            "give such values, as in config=vars(options).",
        ) from error


def _number(value: Value) -> float:
    if not isinstance(value, Mean):
        return float(value)
    number = value.compute()
    value.reset()
    return number
