"""What holds for all tests."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile

import pytest
from hypothesis import settings
from support.durations import Noting
from support.warm.interpreters import close_all

# Machines that run tests are loaded in bursts: a slow example is not a failure.
settings.register_profile("hvdtrain", deadline=None)
settings.load_profile("hvdtrain")

# Far more processes than cores run at once here. Those that wait for a message sleep, instead of taking turns with
# those that compute, and those that wake up do not interrupt them. Together this saves much CPU time.
os.environ.setdefault("OMPI_MCA_threads_pthreads_yield_strategy", "nanosleep")
os.environ.setdefault("OMPI_MCA_threads_pthreads_nanosleep_time", "100000")
# mpirun ends at once where one that was killed, as tests do it, has left the folder of the same process number in /tmp.
SESSIONS = "PRTE_MCA_prte_tmpdir_base"
if SESSIONS not in os.environ:  # pytest-xdist's workers have it from the process that starts them
    os.environ[SESSIONS] = tempfile.mkdtemp(prefix="mpirun-")
    atexit.register(shutil.rmtree, os.environ[SESSIONS], ignore_errors=True)
if sys.platform == "linux":
    with contextlib.suppress(PermissionError):  # of a sandbox, or of who runs at a still lower priority: slower only
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

# Shells start background commands with SIGINT ignored, nohup with SIGHUP. Children inherit that, and tests send both.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Noting())


def pytest_sessionfinish() -> None:
    close_all()


def pytest_collection_finish() -> None:
    """Thousands of tests and what they import live to the end: Python's garbage collections need not visit them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def both_frameworks() -> list[str]:
    """Words for a pytest that loads both frameworks, where torch is built for CUDA.

    Its triton crashes if it is loaded after TensorFlow; and it warns where TensorFlow has asked for CUDA before.
    """
    has_triton = importlib.util.find_spec("triton") is not None
    return ["-p", "triton", "-W", "ignore:CUDA initialization:UserWarning"] if has_triton else []
