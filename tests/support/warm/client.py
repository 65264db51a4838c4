"""`client.py SOCKET ARGV`: stands for "python ARGV", which a child of the server at SOCKET runs.

It passes on signals and ends as the child does; who kills it kills the child too.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

PASSED_ON = ["SIGHUP", "SIGINT", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGCONT"]


def ask(
    path: str, argv: Sequence[str], cwd: str, variables: Mapping[str, str], streams: Sequence[int]
) -> socket.socket:
    """What the server then sends: the child's process id, and how it has ended as os.waitpid(2) says it.

    Args: `streams`: the child's standard streams, and further descriptors, which have the same numbers there.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(path)
    named = [f"{name}={value}" for name, value in variables.items()]
    numbers = ",".join(map(str, [0, 1, 2, *streams[3:]]))
    words = [cwd, variables.get("HVDTRAIN_TEST_RUN", ""), numbers, str(len(argv)), *argv, *named]
    socket.send_fds(server, ["\0".join(words).encode("utf-8", "surrogateescape")], streams)
    return server


def inherited() -> list[int]:
    """Descriptors beside the standard streams that whoever has started this process has left to it."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own, closed by now
            if int(name) > 2 and os.get_inheritable(int(name)):
                found.append(int(name))
    return found


def main(path: str, argv: list[str]) -> None:
    numbers = [signal.Signals[name] for name in PASSED_ON]
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    server = ask(path, argv, os.getcwd(), os.environ, [0, 1, 2, *inherited()])
    child = int(server.recv(64))
    for number in numbers:
        signal.signal(number, lambda received, _: os.kill(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
    status = int(server.recv(64) or 256)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:  # which nobody may handle
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
