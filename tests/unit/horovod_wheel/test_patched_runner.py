"""What the patches of horovodrun's own Python are for, in the Horovod that is installed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection

import psutil
from horovod.runner.common.util.hosts import SlotInfo
from horovod.runner.common.util.safe_shell_exec import terminate_executor_shell_and_children
from horovod.runner.http.http_server import RendezvousServer
from support.processes import wait_until


def test_the_exit_code_of_a_worker_that_is_asked_to_stop_is_kept() -> None:
    with subprocess.Popen(["sh", "-c", f"{sys.executable} -c 'input()'; exit 75"], stdin=subprocess.PIPE) as shell:
        wait_until("the shell has a child", lambda: bool(psutil.Process(shell.pid).children()))
        terminate_executor_shell_and_children(shell)
        assert shell.wait(30) in (75, -9)  # -9: the shell was stopped before it could end


def test_each_scope_is_cleared_when_its_own_ranks_have_met() -> None:
    """A rank alone on its host meets itself in a scope of its own, while others of the next scope have not finished."""
    server = RendezvousServer()
    port = server.start()
    server.init([SlotInfo("here", rank, rank, 0, 2, 2, 1) for rank in range(2)])

    def ask(method: str, path: str) -> int:
        with closing(HTTPConnection("localhost", port, timeout=30)) as connection:
            connection.request(method, path, body="address")
            return connection.getresponse().status

    try:
        for scope in ("local_here/0", "local_here/1", "cross_0/0"):
            ask("PUT", f"/{scope}")
        for finished in ("local_here/0", "cross_0/0", "local_here/1"):
            ask("DELETE", f"/{finished}")
        assert ask("GET", "/local_here/0") == ask("GET", "/cross_0/0") == 404
    finally:
        server.stop()
        server._httpd.server_close()  # which `stop` leaves out
