"""Import one framework and Horovod's binding for it, and print what they can do: the child process of the doctor.

    python -m hvdtrain.doctor.framework_probe torch

Prints one JSON object: `gpus` (what the framework sees), `cuda` (what it was built for, or None), `nccl` (version or
None), `horovod` {transport: built} or None, `horovod_error` (a text or None), `mpi` (what the MPI library that Horovod
loaded says of itself, or None), `mpi_path`.
"""

import ctypes
import importlib
import json
import re
import sys
from pathlib import Path
from typing import Any

TRANSPORTS = ("mpi", "gloo", "nccl", "cuda", "rocm", "ddl", "ccl")
_MPI_LIBRARY = re.compile(r"/libmpi(?:_cxx|ch)?\.so[.\d]*$")
_TEXT_BYTES = 8192  # MPI_MAX_LIBRARY_VERSION_STRING of Open MPI is 256, of MPICH 8192


def probe(framework: str) -> dict[str, Any]:
    """As the module's docstring; an import of the framework itself that fails is not caught."""
    facts = _torch() if framework == "torch" else _tensorflow()
    try:
        hvd = importlib.import_module(f"horovod.{framework}")
        built = {name: bool(getattr(hvd, f"{name}_built")()) for name in TRANSPORTS}
        facts |= {"horovod": built, "horovod_error": None}
    except (ImportError, AttributeError, OSError) as error:
        facts |= {"horovod": None, "horovod_error": f"{type(error).__name__}: {error}"[:300]}
    path = loaded_mpi(Path("/proc/self/maps").read_text())
    return {**facts, "mpi_path": path, "mpi": mpi_version(path) if path else None}


def _torch() -> dict[str, Any]:
    import torch

    visible = torch.cuda.is_available()
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if visible else None  # type: ignore[no-untyped-call]
    return {"gpus": torch.cuda.device_count() if visible else 0, "cuda": torch.version.cuda, "nccl": nccl}


def _tensorflow() -> dict[str, Any]:
    import tensorflow as tf

    return {
        "gpus": len(tf.config.list_physical_devices("GPU")),
        "cuda": tf.sysconfig.get_build_info().get("cuda_version"),
        "nccl": None,
    }


def loaded_mpi(maps: str) -> str | None:
    """Path of the MPI library that a process has loaded, from the text of its /proc/PID/maps."""
    paths = (line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/") and len(line.split()) >= 6)
    return next((path for path in paths if _MPI_LIBRARY.search(path)), None)


def mpi_version(path: str) -> str | None:
    """First line of what MPI_Get_library_version says, which may be called before MPI_Init (MPI 3.1, 8.1.1)."""
    text, length = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.c_int()
    try:
        ctypes.CDLL(path).MPI_Get_library_version(text, ctypes.byref(length))
    except (OSError, AttributeError):
        return None
    return text.value.decode(errors="replace").strip().partition("\n")[0][:200]


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(probe(sys.argv[1])) + "\n")
