"""A training under `hvdtrain launch local` that a test watches or disturbs, and what was seen of it."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hvdtrain.audit.audit_summary import read_coverage
from hvdtrain.launch.processes.orphan_reaper import process_table
from support.process_table import environ_of, variables_of
from support.processes import DEADLINE_S, Spawned, python_path, wait_until
from support.runs import Line, lines_of, result_of, trained_lines
from support.warm.interpreters import Interpreter, with_interpreter

INTERVAL = 10
"""Updates between two checkpoints, where a test asks for no other number."""
ENDLESS = ("--task", "paced:Digits", "--epochs", "5000", "--checkpoint-interval", str(INTERVAL))
"""Options of a training for hours that uses little of the processors."""
WORKERS = Path(__file__).parents[1] / "parallel" / "workers"
"""Tasks and programs of ranks; they can be imported by what `Job` starts."""
RECORD_VARIABLE = "HVDTRAIN_FAULTS_RECORD"
"""A folder: each test leaves a JSON file in it, from which `table.py` makes docs/faults.md."""


class Job(Spawned):
    """A running launcher of `hvdtrain train` with the run folder `out`.

    Args: `interpreter`: "fresh" where a fault depends on how workers start, or on what they are to the launcher.

    Attributes:
        detected_s: seconds from the last `strike` until `await_words` found them.
        message: the line that it found.
    """

    def __init__(
        self,
        folder: Path,
        flags: Sequence[str],
        options: Sequence[str],
        env: Mapping[str, str] | None = None,
        interpreter: Interpreter = "warm workers",
    ) -> None:
        self.folder, self.out = folder, folder / "out"
        self.detected_s, self.message, self._struck_at = 0.0, "", 0.0
        argv = ["python", "-m", "hvdtrain", "launch", "local", *flags, "--", "train", *options]
        given = {"--progress": "none", "--output-dir": "out"}
        argv += [word for option in given.items() if option[0] not in options for word in option]
        variables = {name: text for name, text in os.environ.items() if not name.endswith("_NUM_THREADS")}
        variables |= {**python_path(WORKERS), **(env or {})}
        super().__init__(with_interpreter(argv, interpreter), variables, folder)

    def children_of(self, parent: int) -> list[int]:
        """Those of the job's processes that it has started, in any of its threads, in that order."""
        table = process_table()
        return sorted(process for process in self.processes() if process in table and table[process].parent == parent)

    def workers(self) -> list[int]:
        """Processes, in the order in which they were started: first that of rank 0."""
        return [self.forked(process) for process in self._children_with_a_rank()]

    def variables(self) -> list[dict[str, str]]:
        """Of each worker, as it was started with them."""
        return [variables_of(process) for process in self._children_with_a_rank()]

    def _children_with_a_rank(self) -> list[int]:
        return [process for process in self.children_of(self.process.pid) if b"HOROVOD_RANK=" in environ_of(process)]

    def await_lines(self, more: int = 3) -> None:
        """Until training has written further lines of metrics, and a checkpoint."""
        before = trained_lines(self.out)
        latest = self.out / "checkpoints" / "latest"
        self.await_that(
            lambda: latest.exists() and trained_lines(self.out) >= before + more, f"{more} further lines of metrics"
        )

    def strike(self, fault: Callable[[], object]) -> None:
        """Do it, and remember when."""
        fault()
        self._struck_at = time.monotonic()

    def await_words(self, pattern: str, seconds: float = DEADLINE_S) -> None:
        """Until the output has them; perhaps it had them before it ended."""
        wait_until(pattern, lambda: re.search(pattern, self.output) is not None, seconds, lambda: self.said.tail())
        self.detected_s = time.monotonic() - self._struck_at
        self.message = next(line for line in self.output.splitlines() if re.search(pattern, line))

    def stop(self, most_lost: int = 2 * INTERVAL) -> None:
        """End it in good order. Every record was used once in each finished epoch, and little was trained again.

        Args:
            most_lost: updates for each restart: since the last checkpoint, and while the next one is written.
        """
        self.process.send_signal(signal.SIGTERM)
        assert self.ended() == 75, self.output
        assert read_coverage(self.out).exact, self.output
        goodput = result_of(self.out)["goodput"]
        assert goodput["lost_steps"] <= most_lost * len(goodput["restarts"]), self.output

    def ended(self, seconds: float = DEADLINE_S) -> int:
        """The exit code, once it has ended; afterwards nothing runs."""
        code = self.wait(seconds).returncode
        self.require_gone()
        return code

    def events(self, name: str) -> list[Line]:
        """Lines of metrics.jsonl of one event."""
        return lines_of(self.out, event=name)

    def lost_steps(self) -> int | None:
        """As result.json has them; None where there is none."""
        return int(result_of(self.out)["goodput"]["lost_steps"]) if (self.out / "result.json").exists() else None


def undisturbed(folder: Path, workers: int, *options: str) -> Path:
    """The run folder of a training without faults, in a new `folder`."""
    folder.mkdir()
    with Job(folder, ["-np", str(workers)], options) as job:
        assert job.ended() == 0, job.output
    return job.out
