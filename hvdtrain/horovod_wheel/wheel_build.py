"""Compiles the wheel: fetch, patch, build with pip, show the progress, and tell which line explains a failure."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

from hvdtrain.errors import HvdtrainError
from hvdtrain.horovod_wheel.cuda import cuda_environment
from hvdtrain.horovod_wheel.recipe import Recipe
from hvdtrain.horovod_wheel.source import fetch_sdist, unpack
from hvdtrain.horovod_wheel.toolchain import (
    debian_package,
    find_compiler,
    python_headers,
    require_make,
)
from hvdtrain.horovod_wheel.wheel_cache import WheelCache

BUILD_SECONDS = 7200.0

# Seconds of one core at about 3 GHz, measured with g++ 12, and what does not run in parallel.
_CORE_SECONDS = {"torch": 170, "tensorflow": 170}
_SERIAL_SECONDS = 30
_CUDA_SECONDS = 25  # nvcc 13.0 for six architectures, for two libraries

# TensorFlow's headers take this much memory in one compiler process.
_BYTES_PER_JOB = 1.5e9

# Settings of other builds that Horovod's or CMake's files would read.
_FOREIGN = ("HOROVOD_", "CMAKE_", "CCL_", "MPI_", "NCCL_", "MAKE", "MFLAGS", "GNUMAKE")

_PERCENT = re.compile(r"^\s*\[\s*(\d+)%\]")

# In the order in which they occur in a log, whichever comes first is the cause: a parallel make goes on for a while.
_ERROR = re.compile(
    r"\berror:|^\s*CMake Error|undefined reference to|cannot find -l|\bKilled\b|[Nn]o space left on device"
    r"|\*\*\* .*(Error \d+|Stop\.)|^\s*\w*Error: "
)

_COMPILER_ERROR = re.compile(r"\berror:|undefined reference to|cannot find -l|\bKilled\b")

_HINTS = {
    r"Killed|[Cc]annot allocate memory|virtual memory exhausted": (
        "memory ran out: set HVDTRAIN_BUILD_JOBS=1 and run `make setup` again."
    ),
    r"[Nn]o space left": "free some disk space, or set HVDTRAIN_CACHE_DIR to a folder with 2 GB to spare.",
    r"Python\.h": f"install Python's headers (Debian, Ubuntu: `apt-get install {debian_package('dev')}`).",
    r"MPI|mpi\.h": "the `mpicxx` on the path does not work: repair it, or take it off the path to use PyPI's Open MPI.",
    r"nvcc|[Cc]uda|CUDA|[Nn]ccl|NCCL": "set HVDTRAIN_WITHOUT_NCCL=1 to build for CPUs only, or complete the toolkit.",
    r"[Cc]\+\+17": "use a compiler with C++17: g++ 9 or later.",
}

_OTHER_HINT = "see the log; if the compiler is older than g++ 9 or newer than 14, try another through CXX."


# CMake wraps what the compiler said about its test program into a long message of its own.
_CMAKE_MESSAGE_LINES = 40


def build_wheel(recipe: Recipe, base: Path, cache: WheelCache) -> Path:
    """Builds the recipe's wheel into the cache and returns it. The caller holds the key's lock. Raises UsageError: the
    compiler, make or Python's headers are missing; HvdtrainError: the compilation failed; the message has the first
    error, a hint and the log's path."""
    require_make()
    jobs = parallel_jobs()
    usually = f"usually about {usual_minutes(recipe, jobs)} min on {jobs} core{'s' if jobs > 1 else ''}"
    print(f"  not in the cache, building it: {usually}; log: {_log_file(base, recipe)}", flush=True)
    sdist = fetch_sdist(base / "sdists")
    with cache.building(recipe.key()) as folder:
        tree = unpack(sdist, folder / "source")
        _compile(tree, folder, build_environment(recipe, jobs, folder), _log_file(base, recipe), usually)
        for entry in list(folder.iterdir()):  # only results are kept
            if entry.is_dir():
                shutil.rmtree(entry)
        os.replace(_log_file(base, recipe), folder / "build.log")
        (folder / "recipe.json").write_text(json.dumps(asdict(recipe), indent=2) + "\n", encoding="utf-8")
    wheel = cache.find(recipe.key())
    if wheel is None:
        raise HvdtrainError(
            f"The build of Horovod ended without an error, but left no wheel in {cache.entry(recipe.key())}.",
            "There is nothing to install.",
            "check that the disk is not full, then run `make setup` again.",
        )
    return wheel


def build_environment(recipe: Recipe, jobs: int, scratch: Path) -> dict[str, str]:
    """The environment variables of the build: the user's own without what could change the result unseen, and ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    environment["PATH"] = os.path.join(sys.prefix, "bin") + os.pathsep + environment.get("PATH", os.defpath)
    environment |= {
        "CXX": find_compiler(),
        "MAKEFLAGS": f"-j{jobs}",
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # CMake 4 refuses the version that Gloo names
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
        "HOROVOD_BUILD_ARCH_FLAGS": recipe.architecture,
        "HOROVOD_LOCAL_VERSION": recipe.version().partition("+")[2],
        "HVDTRAIN_CMAKE_ARGS": "\n".join(cmake_arguments(recipe)),
    }
    for framework, name in (("torch", "PYTORCH"), ("tensorflow", "TENSORFLOW")):
        environment[f"HOROVOD_{'WITH' if framework in recipe.framework_names() else 'WITHOUT'}_{name}"] = "1"
    if "torch" in recipe.framework_names():
        environment["CPLUS_INCLUDE_PATH"] = os.pathsep.join(
            filter(None, [str(python_headers()), environment.get("CPLUS_INCLUDE_PATH")])
        )
    if recipe.gpu is not None:
        environment |= cuda_environment(recipe.gpu, scratch)
        if home := environment.get("CUDA_HOME"):  # Horovod's own files ask the first nvcc on the path
            environment["PATH"] = os.path.join(home, "bin") + os.pathsep + environment["PATH"]
    return environment


def cmake_arguments(recipe: Recipe) -> list[str]:
    """Where the extensions look for libraries when they are loaded, and for a CPU build: no look at CUDA at all.

    The wheel of Open MPI puts libmpi.so into the environment's lib/, four folders above horovod/torch/. Found
    relative to the extension, it is the right one wherever the environment is; an absolute path would be that of
    the environment that happened to build it, and when that is gone the system's MPI would be loaded silently.
    """
    search = ["$ORIGIN/../../../..", "$ORIGIN/../../torch/lib"]
    if recipe.gpu is not None:
        cuda = f"cu{recipe.gpu.torch_cuda.split('.')[0]}"
        search += ["$ORIGIN/../../nvidia/nccl/lib", f"$ORIGIN/../../nvidia/{cuda}/lib"]
    arguments = ["-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON", f"-DCMAKE_INSTALL_RPATH={';'.join(search)}"]
    if recipe.mpi.kind == "system":
        arguments.append("-DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON")
    if recipe.gpu is None:
        arguments += ["-DCMAKE_CUDA_COMPILER=NOTFOUND", "-DCMAKE_DISABLE_FIND_PACKAGE_CUDAToolkit=TRUE"]
    return arguments


def parallel_jobs() -> int:
    """HVDTRAIN_BUILD_JOBS, else one for each core that we may use and that has memory enough."""
    wanted = os.environ.get("HVDTRAIN_BUILD_JOBS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(len(os.sched_getaffinity(0)), int(memory / _BYTES_PER_JOB)))


def usual_minutes(recipe: Recipe, jobs: int) -> int:
    """How long the build usually takes, rounded up to minutes."""
    work = sum(_CORE_SECONDS[name] for name in recipe.framework_names()) + (_CUDA_SECONDS if recipe.gpu else 0)
    return -int(-(_SERIAL_SECONDS + work / jobs) // 60)


def _log_file(base: Path, recipe: Recipe) -> Path:
    return base / "logs" / f"horovod-{recipe.key()}.log"


def _compile(tree: Path, folder: Path, environment: dict[str, str], log: Path, usually: str) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--wheel-dir", str(folder), str(tree)]
    progress = Progress(sys.stderr, usually)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as out, _running(command, environment) as process:
        for line in process.stdout or ():
            out.write(line)
            progress.feed(line)
    progress.close()
    if process.returncode != 0:
        text = log.read_text(encoding="utf-8")
        error = first_error(text) or "\n".join(text.splitlines()[-4:])
        raise HvdtrainError(
            f"Compiling Horovod failed (exit code {process.returncode}); the first error is\n\n{error}\n\n",
            f"There is no wheel to install; all of the output is in {log}.",
            hint_for(error),
        )


@contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Runs the command; ends it with all its children on an error, an interrupt, or after BUILD_SECONDS."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    watchdog = threading.Timer(BUILD_SECONDS, os.killpg, (process.pid, signal.SIGKILL))
    watchdog.start()
    try:
        yield process
        process.wait(timeout=BUILD_SECONDS)
    finally:
        watchdog.cancel()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=60)


def first_error(log: str, context: int = 3) -> str | None:
    """The first line of `log` that is an error, and the `context` lines after it without empty ones; None if none is.
    Where CMake reports an error of the compiler, the compiler's own line is taken."""
    lines = [line for line in log.splitlines() if line.strip()]
    start = _first(_ERROR, lines, 0, len(lines))
    if start is None:
        return None
    if "CMake Error" in lines[start]:
        cause = _first(_COMPILER_ERROR, lines, start, min(start + _CMAKE_MESSAGE_LINES, len(lines)))
        start = start if cause is None else cause
    return "\n".join(lines[start : start + 1 + context])


def _first(pattern: re.Pattern[str], lines: list[str], start: int, end: int) -> int | None:
    return next((number for number in range(start, end) if pattern.search(lines[number])), None)


def hint_for(error: str) -> str:
    """What to do about an error that `first_error` found."""
    return next((hint for pattern, hint in _HINTS.items() if re.search(pattern, error)), _OTHER_HINT)


def percent_of(line: str) -> int | None:
    """42 for "[ 42%] Building CXX object …", None for other lines."""
    match = _PERCENT.match(line)
    return int(match[1]) if match else None


class Progress:
    """One line that is rewritten on a terminal; elsewhere a new line at every tenth."""

    def __init__(self, out: TextIO, usually: str) -> None:
        self._out = out
        self._usually = usually
        self._terminal = out.isatty()
        self._start = time.monotonic()
        self._shown = -1

    def feed(self, line: str) -> None:
        percent = percent_of(line)
        if percent is None:
            return
        shown = percent if self._terminal else percent // 10 * 10
        if shown > self._shown:
            self._shown = shown
            minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
            text = f"  compiling Horovod: {shown:3d} %, {minutes}:{seconds:02d} so far, {self._usually}"
            begin, end = ("\r", "") if self._terminal else ("", "\n")
            print(f"{begin}{text}", end=end, file=self._out, flush=True)

    def close(self) -> None:
        if self._terminal and self._shown >= 0:
            print(file=self._out, flush=True)
