"""A standalone Spark cluster on this machine: a master, and two workers at addresses of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Self, cast
from urllib.request import urlopen

from support.process_table import command_of, is_alive
from support.processes import environment, python_path, wait_until

START_S = 120.0
GONE_S = 20.0
CORES = 2  # of each worker
GPUS = ["5", "7"]  # of each worker, by name only
_ANSWER_S = 10.0

# Java's second compiler and its checks of Spark's own code would take longer than all that these programs do.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"


class SparkCluster(AbstractContextManager["SparkCluster"]):
    """It runs from entering to leaving. `variables` are those of whoever launches jobs in it."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.variables = {"JAVA_TOOL_OPTIONS": _JAVA, "SPARK_LOCAL_IP": "127.0.0.1", **python_path(root)}
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master, self._page = "", ""

    def __enter__(self) -> Self:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _begin(self) -> None:
        # What a worker of Spark asks for its GPUs. Nothing of Spark itself uses them.
        script = self._folder / "gpus"
        script.write_text(f"#!/bin/sh\necho '{json.dumps({'name': 'gpu', 'addresses': GPUS})}'\n")
        script.chmod(0o700)
        self._start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.master = self._said_by_master(r"Starting Spark master at (spark://\S+)")
        self._page = self._said_by_master(r"started service 'MasterUI' on port (\d+)")
        wait_until("Spark's master", lambda: self._state() is not None, START_S, self.log)
        for number in (1, 2):
            size = ["--cores", str(CORES), "--memory", "4G", "--work-dir", str(self._folder / f"work{number}")]
            self._start("worker.Worker", *size, "--host", f"127.0.0.{number}", "--webui-port", "0", self.master)
        wait_until("Spark's workers", lambda: (self._state() or {}).get("aliveworkers") == 2, START_S, self.log)

    def _said_by_master(self, pattern: str) -> str:
        log = self._folder / "0-master.Master.log"
        wait_until("Spark's master", lambda: re.search(pattern, log.read_text()) is not None, START_S, self.log)
        return re.findall(pattern, log.read_text())[0]  # type: ignore[no-any-return]

    def await_empty(self) -> None:
        """Until no application is left, and no core is taken."""
        wait_until("an empty cluster", lambda: self._used() == (0, 0), GONE_S, self.log)

    def executors(self) -> list[int]:
        """Processes of Java that run tasks, the oldest first."""
        mark = str(self._folder).encode()  # in the path of their working directories
        return [
            process for process in _processes() if b"ExecutorBackend" in command_of(process) and _is_in(process, mark)
        ]

    def kill_executor(self, number: int) -> None:
        os.kill(self.executors()[number], signal.SIGKILL)

    def log(self) -> str:
        """The ends of what master and workers have written."""
        return "\n".join(f"--- {path.name}\n{path.read_text()[-2000:]}" for path in sorted(self._folder.glob("*.log")))

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(GONE_S)

    def _start(self, program: str, *arguments: str) -> None:
        import pyspark

        script = Path(str(pyspark.__file__)).parent / "bin" / "spark-class"
        with (self._folder / f"{len(self._processes)}-{program}.log").open("wb") as log:
            argv = [str(script), f"org.apache.spark.deploy.{program}", *arguments]
            gpus = f"-Dspark.worker.resource.gpu.amount={len(GPUS)} "
            gpus += f"-Dspark.worker.resource.gpu.discoveryScript={self._folder / 'gpus'}"
            own = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_WORKER_OPTS": gpus}
            variables = environment({**self.variables, **own})
            self._processes.append(subprocess.Popen(argv, stdout=log, stderr=log, env=variables, cwd=self._folder))

    def _state(self) -> dict[str, Any] | None:
        """What the master's page says; None while it does not answer, or not that."""
        with suppress(OSError, ValueError), urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=_ANSWER_S) as page:
            return cast(dict[str, Any], json.load(page))
        return None

    def _used(self) -> tuple[int, int]:
        state = self._state() or {}
        return len(state.get("activeapps", [0])), int(state.get("coresused", 1))


def _processes() -> list[int]:
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and is_alive(int(name)))


def _is_in(process: int, folder: bytes) -> bool:
    with suppress(OSError):
        return os.readlink(f"/proc/{process}/cwd").encode().startswith(folder)
    return False
