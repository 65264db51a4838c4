"""What a build with NCCL needs: a CUDA build of PyTorch, CUDA's compiler with its toolkit, and NCCL.

The compiler is looked for in the wheels of this environment first (the extra `cuda` brings them), then on the path.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# A file of the toolkit that compiling Horovod needs, and the wheel that brings it. All wheels share one folder.
_PARTS = {
    "bin/nvcc": "nvidia-cuda-nvcc",
    "nvvm/bin/cicc": "nvidia-nvvm",
    "include/crt/host_config.h": "nvidia-cuda-crt",
    "include/cuda_runtime.h": "nvidia-cuda-runtime",
    "lib/libcudart.so": "nvidia-cuda-runtime",
    "lib/libcudart_static.a": "nvidia-cuda-runtime",
    "include/cccl/nv/target": "nvidia-cuda-cccl",
}

# The compiler's own parts, which must be of one version.
_COMPILER = {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt"}

# What PyPI's PyTorch for CUDA 13 on x86-64 is compiled for. nvcc 13.0 knows twelve: half a minute more, twice the code.
_ARCHITECTURES = "75,80,86,90,100,120"


@dataclass(frozen=True)
class Gpu:
    """What a build for CUDA depends on. The two folders decide nothing in the binary, which finds NCCL relative to
    itself.

    `torch_cuda`: the CUDA version of PyTorch. `nvcc`: what `nvcc --version` says last. `toolkit`: names and versions of
    the toolkit's wheels, "" for a toolkit of the system. `architectures`: those that the kernels are compiled for, such
    as 80,90; "" for all that nvcc knows. `nccl`: name and version of the wheel that brings NCCL.
    """

    torch_cuda: str
    nvcc: str
    toolkit: str
    architectures: str
    nccl: str
    toolkit_folder: str
    nccl_folder: str

    def __str__(self) -> str:
        return f"{self.nccl} for CUDA {self.torch_cuda}, nvcc from {'wheels' if self.toolkit else 'the system'}"


def find_gpu() -> Gpu | str:
    """The CUDA set-up of this environment; or the first reason not to build with NCCL, in a few words for the user."""
    torch_cuda, nvcc, nccl = installed_torch_cuda(), find_nvcc(), _find_nccl()
    if torch_cuda is None:
        return "no CUDA build of torch"
    if nvcc is None:
        return "no nvcc in a wheel or on the path"
    if os.environ.get("HVDTRAIN_WITHOUT_NCCL") == "1":
        return "HVDTRAIN_WITHOUT_NCCL=1"
    if nccl is None:
        return "no nvidia-nccl package"
    home, wheels = cuda_home(nvcc), toolkit_wheels(nvcc)
    if lack := lacking_parts(Path(home)) or unequal_parts(wheels) if wheels else lacking_toolkit(home):
        return lack
    version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    line = version.strip().splitlines()[-1]
    if other := other_cuda(line, torch_cuda):
        return other
    return Gpu(torch_cuda, line, wheels, architectures(torch_cuda, platform.machine()), nccl[0], home, nccl[1])


def find_nvcc() -> str | None:
    """Path of CUDA's compiler: that of a wheel in this environment, which fits its PyTorch, else the one on the path;
    None: there is neither."""
    for distribution in _wheels_of("nvidia-cuda-nvcc"):
        path = Path(str(distribution.locate_file(f"nvidia/cu{distribution.version.split('.')[0]}/bin/nvcc")))
        if path.is_file():
            return str(path)
    return shutil.which("nvcc")


def toolkit_wheels(nvcc: str) -> str:
    """Names and versions of the wheels around `nvcc`, such as "nvidia-cuda-nvcc 13.0.88, nvidia-nvvm 13.0.88"; "" where
    it came in no wheel."""
    found = {}
    for name in sorted(set(_PARTS.values())):
        for distribution in _wheels_of(name):
            if Path(str(distribution.locate_file("nvidia"))) in Path(nvcc).parents:
                found[name] = f"{name} {distribution.version}"
    return ", ".join(found.values()) if "nvidia-cuda-nvcc" in found else ""


def lacking_parts(home: Path) -> str:
    """The first part of the toolkit that no wheel has brought into the folder `home`, in a few words; "": all are."""
    for part, wheel in _PARTS.items():
        if not any((home / part).parent.glob(f"{Path(part).name}*")):
            return f"no {part} in {home}, which the package {wheel} brings"
    return ""


def unequal_parts(wheels: str) -> str:
    """Which parts of the compiler are of another version than nvcc, in a few words; "" where none is. nvcc's wheel
    itself accepts any. Args: `wheels`: of `toolkit_wheels`."""
    compiler = [part for part in wheels.split(", ") if part.split()[0] in _COMPILER]
    versions = {part.split()[1].rsplit(".", 1)[0] for part in compiler}
    return " beside ".join(compiler) if len(versions) > 1 else ""


def lacking_toolkit(home: str) -> str:
    """What a system's toolkit lacks for a build, in a few words; "" where it is complete, or nvcc does not say where it
    is (`home` is ""). PyTorch and CMake look for the CUDA runtime in these folders only."""
    folders = ("lib64", f"targets/{platform.machine()}-linux/lib")
    if not home or any((Path(home) / folder / "libcudart.so").exists() for folder in folders):
        return ""
    return f"the CUDA toolkit {home} has no lib64/libcudart.so"


def other_cuda(nvcc_version: str, torch_cuda: str) -> str:
    """In a few words, that nvcc is of another major version than PyTorch's CUDA; "" where it is not, or is not said."""
    said = re.search(r"cuda_(\d+)\.\d+", nvcc_version)
    if said is None or said[1] == torch_cuda.split(".")[0]:
        return ""
    return f"nvcc is of CUDA {said[1]}, torch of CUDA {torch_cuda}"


def architectures(torch_cuda: str, machine: str) -> str:
    """The GPU architectures to compile for, comma-separated; "": all that nvcc knows."""
    known = machine == "x86_64" and int(torch_cuda.split(".")[0]) >= 13
    return _ARCHITECTURES if known else ""


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


def _wheels_of(name: str) -> list[importlib.metadata.Distribution]:
    return list(importlib.metadata.distributions(name=name))


def cuda_home(nvcc: str) -> str:
    """The folder of the toolkit of `nvcc`, as it says itself; "" where it does not say.

    The `nvcc` on the path may be a script that calls another one, and what looks for the toolkit would look around that
    script.
    """
    command = [nvcc, "--dryrun", "none.cu"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    top = re.search(r"^#\$ TOP=(.+)$", said.stderr + said.stdout, flags=re.MULTILINE)
    return os.path.realpath(top[1]) if top else ""


def cuda_environment(gpu: Gpu, scratch: Path) -> dict[str, str]:
    """The variables by which Horovod, CMake and PyTorch find NCCL and the toolkit; the folder `scratch` gets links to
    NCCL, and to the toolkit where it came in wheels."""
    nccl = linkable_nccl(Path(gpu.nccl_folder), scratch / "nccl")
    environment = {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_HOME": str(nccl), "HOROVOD_NCCL_LINK": "SHARED"}
    if gpu.architectures:
        environment["HOROVOD_BUILD_CUDA_CC_LIST"] = gpu.architectures
    home = gpu.toolkit_folder
    if gpu.toolkit:
        home = str(linkable_toolkit(Path(gpu.toolkit_folder), scratch / "cuda"))
    return environment | (dict.fromkeys(("HOROVOD_CUDA_HOME", "CUDA_HOME"), home) if home else {})


def linkable_toolkit(home: Path, into: Path) -> Path:
    """A folder with the toolkit of wheels, inside `into`, as nvcc, CMake and PyTorch look for it. The wheels have the
    libraries in lib, not in lib64, and libcudart.so.13 without the name libcudart.so.

    bin is a folder of links, not one link: nvcc looks for lib64 in the folder above it.
    """
    for folder in ("bin", "lib64"):
        (into / folder).mkdir(parents=True)
    for folder in ("include", "nvvm"):
        (into / folder).symlink_to(home / folder)
    for program in (home / "bin").iterdir():
        (into / "bin" / program.name).symlink_to(program)
    for library in [*(home / "lib").glob("*.a"), *(home / "lib").glob("libcudart.so*")]:
        (into / "lib64" / re.sub(r"\.so\..*", ".so", library.name)).symlink_to(library)
    return into


def linkable_nccl(folder: Path, into: Path) -> Path:
    """A folder with NCCL for CMake, inside `into`: the wheel has libnccl.so.2, the linker looks for libnccl.so."""
    (into / "lib").mkdir(parents=True)
    (into / "include").symlink_to(folder / "include")
    (into / "lib" / "libnccl.so").symlink_to(folder / "lib" / "libnccl.so.2")
    return into
