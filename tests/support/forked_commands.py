"""Runs Python programs, each in a fork of this process, which has a framework loaded: importing one takes seconds.

    python forked_commands.py torch|tensorflow

Reads one JSON object a line: {"argv": what stands behind the word python, "cwd": FOLDER, "env": {...}}. Answers with
one JSON line each: [exit code, standard output, standard error]. Ends with its standard input. Only the framework and
modules of ours that import no other one are loaded, so a program's imports are what they are in a new interpreter.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import pkgutil
import runpy
import sys
import tempfile
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from hvdtrain.run.sinks.tensorboard_messages import messages
from hvdtrain.tasks.task_registry import BUILT_IN

MODULES = {
    "torch": ["torch", "hvdtrain.adapters.torch.adapter"],
    "tensorflow": ["tensorflow", "keras", "hvdtrain.adapters.keras.adapter"],
}
FOREIGN = {"torch": {"tensorflow", "keras", "sklearn"}, "tensorflow": {"torch"}}


def load(framework: str) -> None:
    if framework == "tensorflow" and importlib.util.find_spec("triton"):
        importlib.import_module("triton")  # it crashes where a program with both frameworks loads it later
    for name in (*MODULES[framework], "rich.table", "hvdtrain.cli.train", "hvdtrain.config.option_help"):
        importlib.import_module(name)
    for found in pkgutil.walk_packages(importlib.import_module("hvdtrain.run").__path__, "hvdtrain.run."):
        importlib.import_module(found.name)
    messages()
    for classes in BUILT_IN.values():
        importlib.import_module(classes[framework].partition(":")[0])
    if framework == "torch":
        torch = sys.modules["torch"]
        torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))]).step()  # loads what torch loads late
    foreign = {*FOREIGN[framework], "horovod", "mpi4py", "torchvision"} & sys.modules.keys()
    threads = len(os.listdir("/proc/self/task"))  # of which a fork keeps one only
    if foreign or threads > 1:
        raise RuntimeError(f"{framework}: {sorted(foreign)} are loaded, {threads} threads run")


def in_a_fork(request: dict[str, Any]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            run_child(request, out.fileno(), err.fileno())
        _, status = os.waitpid(child, 0)
        texts = [file.read().decode() for file in (out, err) if not file.seek(0)]
        return os.waitstatus_to_exitcode(status), texts[0], texts[1]


def run_child(request: dict[str, Any], out: int, err: int) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(request["cwd"])
        os.environ.update(request["env"])
        run_python(request["argv"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_python(argv: list[str]) -> None:
    """What `python ARGV` does."""
    first, sys.argv = argv[0], argv[1:] if argv[0] == "-m" else ["-c", *argv[2:]] if argv[0] == "-c" else argv
    sys.path[0] = str(Path(first).resolve().parent) if first not in ("-m", "-c") else os.getcwd()
    if first == "-m":
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif first == "-c":
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(argv[1], "<string>", "exec"), main.__dict__)
    else:
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    load(sys.argv[1])
    gc.collect()
    gc.freeze()  # a child's collection would copy every page
    for line in sys.stdin:
        sys.stdout.write(json.dumps(in_a_fork(json.loads(line))) + "\n")
        sys.stdout.flush()
