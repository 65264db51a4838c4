"""An interpreter that has imported a framework, and forks a child for each command that a client brings.

`server.py KIND SOCKET RUNS` (see `KINDS`) says "ready" as soon as it listens, and ends, with all children, when its
standard input does.

Only imports are shared: no thread runs before a fork, and neither Horovod nor the framework has computed anything. A
child has its client's streams, folder and environment, a session of its own, and ends as any interpreter does. The file
RUNS/RUN has a line for each child of a run, the process ids of its client and of itself, since /proc shows it with the
server's environment. What children have in common, unlike processes that are started, is the seed of `hash()`.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib.util
import os
import pkgutil
import re
import runpy
import selectors
import signal
import socket
import sys
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

RUN_VARIABLE = "HVDTRAIN_TEST_RUN"
LIMIT = 1 << 20  # bytes of a request
HIGH = 512  # above all descriptors that a server has

KINDS = {
    "torch": ["torch.utils.checkpoint", "torch.fx.experimental.symbolic_shapes", "horovod.torch"],
    "tensorflow": ["keras", "horovod.tensorflow"],
    "torch-alone": ["torch", "hvdtrain.adapters.torch.adapter"],
    "tensorflow-alone": ["tensorflow", "keras", "hvdtrain.adapters.keras.adapter"],
}
"""What is imported first. Of those "alone", only modules of ours follow that import no other framework, nor Horovod, so
that what a program of one process imports is what it imports in a new interpreter."""
SHARED = ["jsonargparse", "PIL.Image", "rich.console", "safetensors.numpy", "sklearn.datasets", "yaml"]
SHARED_ALONE = ["rich.table", "hvdtrain.cli.train", "hvdtrain.config.option_help"]
FOREIGN = {"torch": "tensorflow|keras", "tensorflow": "torch"}
NOT_FOR_TRAINING = "doctor|horovod_wheel|launch|weights|grain|__main__"
IMPORTS_COMPILER = r"torch\.sync_batch_norm"
"""torch's, which trainings that compile nothing go without. Optimizers take other ways once it is imported."""


class InChild(Exception):  # noqa: N818  it leaves the server's loop in a process that has been forked
    """Carries what this process has to run, as after the word "python"."""


def preload(kind: str) -> None:
    """Import the framework, and modules of ours that trainings with it may import."""
    framework, _, alone = kind.partition("-")
    # As if it were not installed: scikit-learn and Keras would import it, and pyarrow by it, which starts a thread.
    sys.modules["pandas"] = None  # type: ignore[assignment]
    if kind == "tensorflow-alone" and importlib.util.find_spec("triton"):
        importlib.import_module("triton")  # it crashes where a program with both frameworks loads it later
    for name in (*KINDS[kind], *(SHARED_ALONE if alone else SHARED)):
        importlib.import_module(name)
    foreign = {*FOREIGN[framework].split("|"), "pyarrow", "datasets", "mpi4py"}  # mpi4py starts MPI as it is imported
    if alone:
        _load_for_one_process(framework)
        foreign |= {"horovod", "torchvision", *(["sklearn"] if framework == "torch" else [])}
    else:
        excluded = re.compile(rf"\.(\w*({FOREIGN[framework]})\w*|{NOT_FOR_TRAINING}|{IMPORTS_COMPILER})(\.|$)")
        for package in ("data_sharding", "hvdtrain"):
            _import_all(importlib.import_module(package), excluded)
    _make_what_each_start_makes()
    del sys.modules["pandas"]
    assert not foreign & sys.modules.keys(), f"modules for {kind} import {foreign & sys.modules.keys()}"
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads run, and only one of them would live on in a child"


def _make_what_each_start_makes() -> None:
    """The parser of the options, and classes of TensorBoard's messages: a fifth of a second of each training."""
    from hvdtrain.config.parser import parse_train_config
    from hvdtrain.run.sinks.tensorboard_logger import messages

    parse_train_config([])
    messages()


def _load_for_one_process(framework: str) -> None:
    from hvdtrain.tasks.task_registry import BUILT_IN

    _import_all(importlib.import_module("hvdtrain.run"), re.compile("$^"))
    for classes in BUILT_IN.values():
        importlib.import_module(classes[framework].partition(":")[0])
    if framework == "torch":
        torch = sys.modules["torch"]
        torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()  # loads what torch loads late


def _import_all(package: ModuleType, excluded: re.Pattern[str]) -> None:
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if not excluded.search(found.name):
            with suppress(ModuleNotFoundError):  # of a package that is not installed: a child that needs it will say so
                module = importlib.import_module(found.name)
                if found.ispkg:
                    _import_all(module, excluded)


class Server:
    """Forks children, tells their clients how they end, and ends those whose client was killed."""

    def __init__(self, path: str, runs: Path) -> None:
        self._runs = runs
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(path)
        self._listener.listen(64)
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}  # by child

    def serve(self) -> None:
        """Until standard input ends. Raises `InChild` in every child."""
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._close)
        print("ready", flush=True)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        message, streams, _, _ = socket.recv_fds(client, LIMIT, 16)
        if not message:  # it was killed before it could ask
            client.close()
            return
        child = os.fork()
        if child == 0:
            self._become(client, message, streams)
        for stream in streams:
            os.close(stream)
        handle = os.pidfd_open(child)
        self._clients[child] = client
        self._selector.register(client, selectors.EVENT_READ, lambda: self._abandoned(client, child))
        self._selector.register(handle, selectors.EVENT_READ, lambda: self._ended(client, child, handle))
        with suppress(OSError):  # the client has been killed: its end is the next event
            client.send(str(child).encode())

    def _become(self, client: socket.socket, message: bytes, streams: list[int]) -> None:
        """The child: take over what the client has, and leave the server."""
        os.setsid()
        cwd, run, numbers, count, *words = message.decode("utf-8", "surrogateescape").split("\0")
        if run:
            asking = int.from_bytes(client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)
            with (self._runs / run).open("a") as file:
                file.write(f"{asking} {os.getpid()}\n")
        high = [fcntl.fcntl(stream, fcntl.F_DUPFD, HIGH) for stream in streams]
        self._selector.close()
        for each in (self._listener, client, *self._clients.values()):
            each.close()  # by its own method: else, when it is collected, it would close what has its number by then
        os.closerange(3, HIGH)
        for number, stream in zip(map(int, numbers.split(",")), high, strict=True):
            os.dup2(stream, number)
            os.close(stream)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(word.partition("=")[::2] for word in words[int(count) :])
        raise InChild(*words[: int(count)])

    def _abandoned(self, client: socket.socket, child: int) -> None:
        if child in self._clients:  # else both ended at once
            self._selector.unregister(client)
            _kill_session(child)

    def _ended(self, client: socket.socket, child: int, handle: int) -> None:
        _, status = os.waitpid(child, 0)
        del self._clients[child]
        self._selector.unregister(handle)
        os.close(handle)
        with suppress(KeyError):
            self._selector.unregister(client)
        with suppress(OSError):  # the client was killed
            client.send(str(status).encode())
        client.close()

    def _close(self) -> None:
        for child in self._clients:
            _kill_session(child)
        os._exit(0)


def _kill_session(session: int) -> None:
    """Kill the leader and all that has not left its session."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                os.kill(int(folder.name), signal.SIGKILL)


def run(argv: list[str], path: list[str]) -> None:
    """What `python ARGV` does. Args: `path`: `sys.path` as the interpreter has it without a script."""
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
    sys.stdout.reconfigure(write_through=bool(os.environ.get("PYTHONUNBUFFERED")))
    if "torch" in sys.modules and os.environ.get("OMP_NUM_THREADS"):
        sys.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    while argv[0] == "-W":
        warnings.simplefilter(argv[1])  # type: ignore[arg-type]
        argv = argv[2:]
    extra = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    first = str(Path(argv[0]).resolve().parent) if argv[0] not in ("-m", "-c") else os.getcwd()
    sys.path[:] = [first, *filter(None, extra), *path]
    sys.argv = {"-m": argv[1:], "-c": ["-c", *argv[2:]]}.get(argv[0], argv)
    sys.path_importer_cache.clear()
    sys.modules.pop("sitecustomize", None)
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    if argv[0] == "-m":
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        module = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(argv[1], "<string>", "exec"), module.__dict__)
    else:
        runpy.run_path(argv[0], run_name="__main__")


def end(code: object) -> NoReturn:
    """As an interpreter ends, but for its last look at all modules and libraries, which takes a fifth of a second."""
    if "mpi4py" in sys.modules:  # it ends MPI in that last look
        raise SystemExit(code)
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
    threading._shutdown()  # type: ignore[attr-defined]  waits for threads that are no daemons
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code if isinstance(code, int) else int(code is not None))


def main(kind: str, path: str, runs: str) -> None:
    plain_path = sys.path[1:]  # without this file's folder
    gc.disable()
    preload(kind)
    gc.collect()
    gc.enable()
    gc.freeze()  # else each child's collections, the one at its end too, would visit and copy all that was imported
    try:
        Server(path, Path(runs)).serve()
    except InChild as child:
        argv = list(child.args)
    try:
        run(argv, plain_path)
    except SystemExit as asked:
        end(asked.code)
    end(None)


if __name__ == "__main__":
    main(*sys.argv[1:])
