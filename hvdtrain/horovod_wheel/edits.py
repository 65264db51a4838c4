"""Every change made to Horovod's source release: the full list, each with its reason.

An edit replaces one exact piece of text. If the piece is not there exactly once, the release is not the one
that the edit was written for, and the build stops.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple, dataclass
from pathlib import Path

from hvdtrain.errors import HvdtrainError


@dataclass(frozen=True)
class Edit:
    """Replace `old`, which must occur exactly once in `path` (relative to the source tree), by `new`."""

    path: str
    old: str
    new: str
    reason: str


_BUILT_CHECK = """def {name}_built(verbose=False):
    for ext_base_name in EXTENSIONS:
        built_fn = lambda ext: ext.{name}_built()
        result = _check_extension_lambda(
            ext_base_name, built_fn, 'built with {title}', verbose)
        if result is not None:
            return result
    return None
"""

_BUILT_RECORD = """def {name}_built(verbose=False):
    file_path = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "metadata.json")
    with open(file_path) as f:
        return json.load(f).get("with_{name}") == "TRUE"
"""

_GPU_STREAM = """// Forward declaration of AsGpuStreamValue
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream);
} // namespace stream_executor
} // namespace gpu
#if TENSORFLOW_VERSION >= 2011000000
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
"""

_GPU_STREAM_HANDLE = """#include "xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
inline GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace gpu
} // namespace stream_executor
"""

_SECOND_GLOO_DEVICE = """  attr device_attr;
  device_attr.iface = gloo_iface_;
  device_attr.ai_family = AF_UNSPEC;
  auto dev = CreateDevice(device_attr);

  global_ctx = global_context.ctx;
"""

_RUN_COMMANDLINE = """def run_commandline():
    if sys.prefix != sys.base_prefix:
        own = os.path.join(sys.prefix, 'bin')
        os.environ['PATH'] = own + os.pathsep + os.environ.get('PATH', os.defpath)
    args = parse_args()
"""

_CXX17 = "PyTorch 2.1 and later need C++17 (horovod/horovod#3996)"
_OPEN_MPI_5 = "Open MPI 5 takes a single-dash option for the program to run: 'unable to find executable: none'"
_NO_DISTUTILS = "Python 3.12 removed distutils from the standard library"
_RECORDED = "asking the extension imports TensorFlow in a child process: 3.5 s before every launch"

EDITS = (
    Edit("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)", _CXX17),
    Edit("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)", _CXX17),
    Edit(
        "horovod/torch/CMakeLists.txt",
        "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        "import sysconfig; print(sysconfig.get_path('include'))",
        _NO_DISTUTILS,
    ),
    Edit(
        "horovod/runner/js_run.py",
        "from distutils.spawn import find_executable",
        "from shutil import which as find_executable",
        _NO_DISTUTILS,
    ),
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
        "TensorFlow's wheel lacks an XLA header that it includes; these operations are off by default",
    ),
    Edit("setup.py", "'RelWithDebInfo'", "'Release'", "debug information makes the wheel 15 times as large"),
    Edit("setup.py", "make_args.append('VERBOSE=1')", "pass", "with VERBOSE=1 the first error is hard to find"),
    Edit(
        "setup.py",
        "FILEPATH=' + sys.executable]\n",
        "FILEPATH=' + sys.executable] + os.environ['HVDTRAIN_CMAKE_ARGS'].split('\\n')\n",
        "the wheel must find its libraries in whatever environment it is installed, so the search path is relative",
    ),
    Edit(
        "cmake/Modules/FindPytorch.cmake",
        "import torch; from torch.utils.cpp_extension import CUDA_HOME; "
        "print(True if ((torch.version.cuda is not None) and (CUDA_HOME is not None)) else False)",
        "import os, torch; print(torch.version.cuda is not None and 'HOROVOD_GPU_OPERATIONS' in os.environ)",
        "a partial CUDA toolkit on the machine must not turn a build for CPUs into one for CUDA",
    ),
    Edit(
        "horovod/tensorflow/mpi_ops.cc",
        _GPU_STREAM,
        _GPU_STREAM_HANDLE,
        "TensorFlow no longer has AsGpuStreamValue; this is what it returned (only compiled for GPUs)",
    ),
    Edit(
        "CMakeLists.txt",
        r'"\"dummy\": \"none\"\n}")',
        r'"\"with_mpi\": \"${HAVE_MPI}\",\n\"with_gloo\": \"${HAVE_GLOO}\",\n\"dummy\": \"none\"\n}")',
        "the build records whether it has MPI and Gloo, for the two edits below",
    ),
    Edit(
        "horovod/common/util.py",
        _BUILT_CHECK.format(name="mpi", title="MPI"),
        _BUILT_RECORD.format(name="mpi"),
        _RECORDED,
    ),
    Edit(
        "horovod/common/util.py",
        _BUILT_CHECK.format(name="gloo", title="Gloo"),
        _BUILT_RECORD.format(name="gloo"),
        _RECORDED,
    ),
    Edit(
        "horovod/common/gloo/gloo_controller.cc",
        "global_ranks_.reserve(size_);",
        "global_ranks_.resize(size_);",
        "reserve leaves the size 0, so the stall check finds no rank missing: under Gloo a stalled job never ended",
    ),
    Edit(
        "horovod/common/gloo/gloo_context.cc",
        _SECOND_GLOO_DEVICE,
        _SECOND_GLOO_DEVICE.replace("= gloo_iface_", "= global_context.gloo_iface_"),
        "the device of the collectives forgot the interface that was asked for, took the address of the host's name "
        "instead, and aborted where /etc/hosts has that at 127.0.1.1, as Debian's does",
    ),
    Edit(
        "horovod/runner/launch.py",
        "def run_commandline():\n    args = parse_args()\n",
        _RUN_COMMANDLINE,
        "`.venv/bin/horovodrun` by its path must find the mpirun and the python beside it, not another MPI's",
    ),
    Edit(
        "horovod/runner/mpi_run.py",
        "['-bind-to none', '-map-by slot']",
        "['--bind-to none', '--map-by slot']",
        _OPEN_MPI_5,
    ),
    Edit(
        "horovod/runner/mpi_run.py",
        "['-bind-to socket', '-map-by socket', '-rank-by core']",
        "['--bind-to socket', '--map-by socket', '--rank-by core']",
        _OPEN_MPI_5,
    ),
)


def apply_edits(tree: Path, edits: tuple[Edit, ...] = EDITS) -> None:
    """Changes the unpacked source release in `tree`.

    Raises:
        HvdtrainError: a file is missing, or the text to replace is not in it exactly once.
    """
    for edit in edits:
        file = tree / edit.path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        found = text.count(edit.old)
        if found != 1:
            raise HvdtrainError(
                f"An edit of Horovod's {edit.path} looks for {edit.old.strip().splitlines()[0]!r}.",
                f"It is there {found} times instead of once, so this is not the release that the edit is for.",
                "use the release that is pinned in hvdtrain/horovod_wheel/sdist.py, or adapt edits.py to the new one.",
            )
        file.write_text(text.replace(edit.old, edit.new), encoding="utf-8")


def edits_digest(edits: tuple[Edit, ...] = EDITS) -> str:
    """A hash that changes with any edit, in hexadecimal."""
    return hashlib.sha256(json.dumps([astuple(edit) for edit in edits]).encode()).hexdigest()
