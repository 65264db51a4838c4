"""What the patches of horovodrun's own Python are for, in the Horovod that is installed."""

from __future__ import annotations

import subprocess
import sys

import psutil
from horovod.runner.common.util.safe_shell_exec import terminate_executor_shell_and_children
from support.processes import wait_until


def test_the_exit_code_of_a_worker_that_is_asked_to_stop_is_kept() -> None:
    with subprocess.Popen(["sh", "-c", f"{sys.executable} -c 'input()'; exit 75"], stdin=subprocess.PIPE) as shell:
        wait_until("the shell has a child", lambda: bool(psutil.Process(shell.pid).children()))
        terminate_executor_shell_and_children(shell)
        assert shell.wait(30) in (75, -9)  # -9: the shell was stopped before it could end
