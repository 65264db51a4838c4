"""Kill one worker of a running training, and say when the job made its next update."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.recovery.arms import Arm
from benchmarks.recovery.step_times import VARIABLE, step_times
from benchmarks.startup.arms import environment
from benchmarks.startup.measure import REPOSITORY

DEADLINE_S = 180.0
WARM_STEPS = 100
_UNDER_WAY_S = 0.1
"""An update for which the killed worker had sent its part already may be done so much later."""

_LOOK_S = 0.01


def seconds_to_next_step(arm: Arm, np: int) -> float:
    """Seconds from SIGKILL for the worker that began last until any worker has done an update without it.

    Raises:
        RuntimeError: the command ended, or made no further update.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder, times = Path(scratch, "own"), Path(scratch, "times")
        folder.mkdir()
        times.mkdir()
        with Path(scratch, "output").open("w+") as output:
            process = subprocess.Popen(
                arm.argv(np, folder),
                cwd=REPOSITORY,
                env=environment(str(times), VARIABLE),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return _killed(process, np, times)
            except RuntimeError as error:
                output.seek(0)
                raise RuntimeError(f"{arm.label}: {error}\n{output.read()[-3000:]}") from error
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                for worker in step_times(times):
                    _end(worker)


def _killed(process: subprocess.Popen[bytes], np: int, times: Path) -> float:
    deadline = time.monotonic() + DEADLINE_S

    def wait(what: str) -> None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {what}; exit code {process.poll()}")
        time.sleep(_LOOK_S)

    while sum(len(done) >= WARM_STEPS for done in step_times(times).values()) < np:
        wait(f"{WARM_STEPS} steps of {np} workers")
    victim = max(step_times(times))
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    while True:
        done = [at for worker, all_done in step_times(times).items() if worker != victim for at in all_done]
        after = [at for at in done if at > killed + _UNDER_WAY_S]
        if after:
            return min(after) - killed
        wait("further step")


def _end(worker: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(worker, signal.SIGKILL)
