"""Whether Horovod is built with NCCL: only where CUDA's compiler and a CUDA build of PyTorch both are."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """What a build for CUDA depends on: the CUDA version of PyTorch, what `nvcc --version` says last, name and version
    of the package that brings NCCL, and its folder. That decides nothing in the binary, which finds NCCL relative to
    itself."""

    torch_cuda: str
    nvcc: str
    nccl: str
    nccl_folder: str


def find_gpu() -> Gpu | None:
    """The CUDA set-up of this environment; None where `why_no_gpu` gives a reason."""
    torch_cuda, nccl = installed_torch_cuda(), _find_nccl()
    if torch_cuda is None or nccl is None or why_no_gpu():
        return None
    version = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    return Gpu(torch_cuda, version.strip().splitlines()[-1], *nccl)


def why_no_gpu() -> str:
    """The first reason not to build with NCCL, in a few words for the user; "" where there is none."""
    if installed_torch_cuda() is None:
        return "no CUDA build of torch"
    if shutil.which("nvcc") is None:
        return "no nvcc on the path"
    if os.environ.get("HVDTRAIN_WITHOUT_NCCL") == "1":
        return "HVDTRAIN_WITHOUT_NCCL=1"
    return lacking_toolkit() if _find_nccl() else "no nvidia-nccl package"


def lacking_toolkit() -> str:
    """What nvcc's toolkit lacks for a build, in a few words; "" where it is complete, or nvcc does not say where it is.
    PyTorch and CMake look for the CUDA runtime in these folders only."""
    home = cuda_home().get("HOROVOD_CUDA_HOME")
    folders = ("lib64", f"targets/{platform.machine()}-linux/lib")
    if home is None or any((Path(home) / folder / "libcudart.so").exists() for folder in folders):
        return ""
    return f"the CUDA toolkit {home} has no lib64/libcudart.so"


def installed_torch_cuda() -> str | None:
    """The CUDA version of the installed PyTorch, read from its version file because importing it takes seconds."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    return cuda_in_version_file((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8"))


def cuda_in_version_file(text: str) -> str | None:
    """What `cuda` is set to in the text of torch/version.py; None for a CPU build."""
    match = re.search(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, flags=re.MULTILINE)
    return match[1] if match else None


def _find_nccl() -> tuple[str, str] | None:
    """(name and version, folder with include/ and lib/) of the nvidia-nccl wheel that PyTorch depends on."""
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"] or ""
        folder = Path(str(distribution.locate_file("nvidia/nccl")))
        if name.startswith("nvidia-nccl") and (folder / "include" / "nccl.h").is_file():
            return f"{name} {distribution.version}", str(folder)
    return None


def cuda_home() -> dict[str, str]:
    """The toolkit of the `nvcc` on the path, as it says itself, for Horovod and for PyTorch; {} where it does not say.

    The `nvcc` on the path may be a script that calls another one, and both look for the toolkit around that script.
    """
    command = ["nvcc", "--dryrun", "none.cu"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    top = re.search(r"^#\$ TOP=(.+)$", said.stderr + said.stdout, flags=re.MULTILINE)
    return dict.fromkeys(("HOROVOD_CUDA_HOME", "CUDA_HOME"), os.path.realpath(top[1])) if top else {}


def linkable_nccl(folder: Path, into: Path) -> Path:
    """A folder with NCCL for CMake, inside `into`: the wheel has libnccl.so.2, the linker looks for libnccl.so."""
    (into / "lib").mkdir(parents=True)
    (into / "include").symlink_to(folder / "include")
    (into / "lib" / "libnccl.so").symlink_to(folder / "lib" / "libnccl.so.2")
    return into
