"""CUDA's compiler: found in wheels before the path, complete or refused by name, linked as nvcc looks for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hvdtrain.errors import UsageError
from hvdtrain.horovod_wheel.cuda import (
    Gpu,
    architectures,
    cuda_environment,
    cuda_home,
    cuda_in_version_file,
    find_gpu,
    find_nvcc,
    installed_torch_cuda,
    lacking_parts,
    lacking_toolkit,
    linkable_nccl,
    linkable_toolkit,
    other_cuda,
    toolkit_wheels,
    unequal_parts,
)
from hvdtrain.horovod_wheel.environment import no_cpu_torch, require_cuda_possible
from hvdtrain.horovod_wheel.recipe import find_recipe
from hvdtrain.horovod_wheel.toolchain import find_mpi
from hvdtrain.horovod_wheel.wheel_build import build_environment

ROOT = Path(__file__).parents[3]

# What the wheels of CUDA 13.0 put into nvidia/cu13, as far as a build needs it.
WHEELS = {
    "nvidia-cuda-nvcc": ("bin/nvcc.profile", "bin/ptxas"),
    "nvidia-nvvm": ("nvvm/bin/cicc",),
    "nvidia-cuda-crt": ("include/crt/host_config.h",),
    "nvidia-cuda-runtime": ("include/cuda_runtime.h", "lib/libcudart.so.13", "lib/libcudart_static.a"),
    "nvidia-cuda-cccl": ("include/cccl/nv/target",),
}

# Says as much as nvcc 13.0 does: where it lies, as it was called, and its version.
NVCC = """#!/bin/sh
case "$1" in
--dryrun) echo "#$ TOP=$(dirname "$0")/.." >&2 ;;
--version) printf 'nvcc: NVIDIA (R) Cuda compiler driver\\nBuild cuda_13.0.r13.0/compiler.36424714_0\\n' ;;
esac
"""


def program(path: Path, text: str = NVCC) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, searched before all others, with the wheels of CUDA's compiler, NCCL and PyTorch's file of
    versions; and no nvcc on the path."""
    folder = tmp_path / "site-packages"
    for name, files in WHEELS.items():
        metadata(folder, name, "13.0.88")
        for file in files:
            path = folder / "nvidia" / "cu13" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    program(folder / "nvidia" / "cu13" / "bin" / "nvcc")
    metadata(folder, "nvidia-nccl-cu13", "2.29.7")
    (folder / "nvidia" / "nccl" / "include").mkdir(parents=True)
    (folder / "nvidia" / "nccl" / "include" / "nccl.h").touch()
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").touch()
    (folder / "torch" / "version.py").write_text("cuda: Optional[str] = '13.0'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv(
        "PATH", os.pathsep.join(path for path in ("/usr/bin", "/bin") if not (Path(path) / "nvcc").exists())
    )
    monkeypatch.delenv("HVDTRAIN_WITHOUT_NCCL", raising=False)
    return folder


def metadata(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")


def found_in(packages: Path) -> Gpu | str:
    """What a new process finds, as torch is imported here already."""
    code = "from hvdtrain.horovod_wheel.cuda import find_gpu; print(repr(find_gpu()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(packages), str(ROOT)])}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    found: Gpu | str = eval(run.stdout, {"Gpu": Gpu})
    return found


def test_the_compiler_in_wheels_is_found_without_one_on_the_path(packages: Path) -> None:
    found = found_in(packages)
    assert isinstance(found, Gpu)
    assert found.toolkit_folder == str(packages / "nvidia" / "cu13")
    assert found.nvcc == "Build cuda_13.0.r13.0/compiler.36424714_0"
    assert (found.torch_cuda, found.nccl) == ("13.0", "nvidia-nccl-cu13 2.29.7")
    assert str(found) == "nvidia-nccl-cu13 2.29.7 for CUDA 13.0, nvcc from wheels"


def test_the_wheels_of_the_toolkit_are_part_of_the_recipe(packages: Path) -> None:
    wheels = toolkit_wheels(str(packages / "nvidia" / "cu13" / "bin" / "nvcc"))
    assert wheels == ", ".join(f"{name} 13.0.88" for name in sorted(WHEELS))
    mpi = find_mpi()
    assert mpi is not None
    gpu = Gpu("13.0", "nvcc", wheels, "80", "nccl", "", "")
    recipe = replace(find_recipe(mpi), gpu=gpu)
    newer = replace(gpu, toolkit=wheels.replace("nvidia-cuda-runtime 13.0.88", "nvidia-cuda-runtime 13.0.96"))
    assert replace(recipe, gpu=newer).key() != recipe.key()


def test_a_compiler_in_wheels_goes_before_the_one_on_the_path(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = program(packages.parent / "usr" / "bin" / "nvcc")
    monkeypatch.setenv("PATH", str(other.parent), prepend=os.pathsep)
    assert find_nvcc() == str(packages / "nvidia" / "cu13" / "bin" / "nvcc")
    assert toolkit_wheels(str(other)) == ""
    (packages / "nvidia" / "cu13" / "bin" / "nvcc").unlink()
    assert find_nvcc() == str(other)


@pytest.mark.parametrize(("wheel", "file"), [(wheel, file) for wheel, files in WHEELS.items() for file in files[-1:]])
def test_a_part_of_the_toolkit_that_is_missing_is_named_with_its_wheel(packages: Path, wheel: str, file: str) -> None:
    home = packages / "nvidia" / "cu13"
    assert lacking_parts(home) == ""
    if wheel == "nvidia-cuda-nvcc":
        file = "bin/nvcc"
        shutil.rmtree(home / "bin")
        (home / "bin").mkdir()
    else:
        (home / file).unlink()
    assert lacking_parts(home) == f"no {file} in {home}, which the package {wheel} brings"


def test_parts_of_the_compiler_of_other_versions_are_named() -> None:
    """Of cuda-toolkit 13.0.2 pip took nvcc 13.0 and the newest nvidia-nvvm, whose output ptxas 13.0 cannot read."""
    nvcc, cccl = "nvidia-cuda-nvcc 13.0.88", "nvidia-cuda-cccl 13.0.85"
    assert unequal_parts(f"{cccl}, {nvcc}, nvidia-nvvm 13.0.80") == ""
    assert unequal_parts(f"{cccl}, {nvcc}, nvidia-nvvm 13.5.37") == f"{nvcc} beside nvidia-nvvm 13.5.37"


def test_the_reason_for_no_nccl_is_the_first_that_holds(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "nvidia" / "cu13" / "nvvm" / "bin" / "cicc").unlink()
    assert "which the package nvidia-nvvm brings" in str(found_in(packages))
    (packages / "nvidia" / "nccl" / "include" / "nccl.h").unlink()
    assert found_in(packages) == "no nvidia-nccl package"
    monkeypatch.setenv("HVDTRAIN_WITHOUT_NCCL", "1")
    assert found_in(packages) == "HVDTRAIN_WITHOUT_NCCL=1"
    (packages / "nvidia" / "cu13" / "bin" / "nvcc").unlink()
    assert found_in(packages) == "no nvcc in a wheel or on the path"
    (packages / "torch" / "version.py").write_text("cuda: Optional[str] = None\n", encoding="utf-8")
    assert found_in(packages) == "no CUDA build of torch"


def test_a_compiler_of_another_cuda_than_torch_is_refused(packages: Path) -> None:
    (packages / "torch" / "version.py").write_text("cuda: Optional[str] = '12.8'\n", encoding="utf-8")
    assert found_in(packages) == "nvcc is of CUDA 13, torch of CUDA 12.8"
    assert other_cuda("Build cuda_13.0.r13.0/compiler.36424714_0", "13.2") == ""
    assert other_cuda("a compiler that says something else", "13.0") == ""


def test_the_toolkit_of_wheels_can_be_linked_and_nvcc_finds_lib64(packages: Path, tmp_path: Path) -> None:
    folder = linkable_toolkit(packages / "nvidia" / "cu13", tmp_path / "scratch")
    assert cuda_home(str(folder / "bin" / "nvcc")) == str(folder)  # not the wheels' folder, which has no lib64
    assert sorted(path.name for path in (folder / "lib64").iterdir()) == ["libcudart.so", "libcudart_static.a"]
    assert lacking_toolkit(str(folder)) == ""
    assert (folder / "include" / "cuda_runtime.h").is_file()
    assert (folder / "nvvm" / "bin" / "cicc").is_file()


def test_the_build_takes_the_toolkit_of_the_wheels(packages: Path, tmp_path: Path) -> None:
    gpu, mpi = found_in(packages), find_mpi()
    assert isinstance(gpu, Gpu)
    assert mpi is not None
    environment = build_environment(replace(find_recipe(mpi), gpu=gpu), 1, tmp_path / "build")
    home = str(tmp_path / "build" / "cuda")
    assert environment["CUDA_HOME"] == environment["HOROVOD_CUDA_HOME"] == home
    assert environment["PATH"].startswith(os.path.join(home, "bin") + os.pathsep)
    assert environment["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert environment["HOROVOD_NCCL_HOME"] == str(tmp_path / "build" / "nccl")


def test_a_toolkit_of_the_system_is_taken_as_it_is(packages: Path, tmp_path: Path) -> None:
    gpu = Gpu("13.0", "nvcc", "", "", "nccl 2", "/usr/local/cuda", str(packages / "nvidia" / "nccl"))
    environment = cuda_environment(gpu, tmp_path)
    assert environment["CUDA_HOME"] == environment["HOROVOD_CUDA_HOME"] == "/usr/local/cuda"
    assert "HOROVOD_BUILD_CUDA_CC_LIST" not in environment


def test_only_for_pytorchs_own_architectures_is_compiled_where_they_are_known() -> None:
    assert architectures("13.0", "x86_64") == "75,80,86,90,100,120"
    assert architectures("12.8", "x86_64") == architectures("13.0", "aarch64") == ""


@pytest.mark.parametrize(
    ("extras", "without_nccl", "fact"),
    [
        ("tensorflow,cuda", "", "The extras are tensorflow,cuda: cuda without torch."),
        ("torch,cuda", "1", "HVDTRAIN_WITHOUT_NCCL=1 is set, and the extra cuda is asked for."),
    ],
)
def test_extras_that_exclude_nccl_are_refused_before_any_work(
    extras: str, without_nccl: str, fact: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HVDTRAIN_WITHOUT_NCCL", without_nccl)
    with pytest.raises(UsageError) as refused:
        require_cuda_possible(extras)
    assert refused.value.fact == fact
    require_cuda_possible("torch,mpi")


def test_the_extra_cuda_keeps_pip_from_torchs_build_for_cpus() -> None:
    assert no_cpu_torch("numpy==2.4.6\ntorch==2.13.0\ntorchdata==0.11.0\n") == ["torch!=2.13.0+cpu"]
    assert no_cpu_torch((ROOT / "constraints.txt").read_text(encoding="utf-8"))[0].endswith("+cpu")


def test_an_installation_with_nccl_is_refused_where_only_one_for_cpus_is_possible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HVDTRAIN_WITHOUT_NCCL", "1")
    command = [sys.executable, "-m", "hvdtrain.horovod_wheel", "install", "--with-nccl"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert f"Horovod cannot be built with NCCL here: {find_gpu()}." in run.stderr
    assert "HINT: " in run.stderr


def test_the_cuda_toolkit_is_where_nvcc_says_not_where_a_script_of_that_name_lies(tmp_path: Path) -> None:
    """A stand-in for nvcc, which says this much of what nvcc 13.0 does."""
    home = tmp_path / "cuda-13.0"
    script = program(
        tmp_path / "nvcc", f"#!/bin/sh\necho '#$ _HERE_={home}/bin' >&2\necho '#$ TOP={home}/bin/..' >&2\n"
    )
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "libcudart.so").touch()  # where neither PyTorch nor CMake looks
    assert cuda_home(str(script)) == str(home)
    assert lacking_toolkit(str(home)) == f"the CUDA toolkit {home} has no lib64/libcudart.so"
    (home / "lib64").symlink_to("lib")
    assert lacking_toolkit(str(home)) == ""
    assert lacking_toolkit("") == ""


def test_cuda_is_read_from_the_version_file() -> None:
    assert cuda_in_version_file("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n") == "13.0"
    assert cuda_in_version_file("cuda = '12.8'\n") == "12.8"
    assert cuda_in_version_file("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n") is None


def test_cuda_is_what_torch_itself_says() -> None:
    assert installed_torch_cuda() == torch.version.cuda


def test_nccl_can_be_linked_although_the_wheel_has_no_plain_library_name(tmp_path: Path) -> None:
    wheel = tmp_path / "nvidia" / "nccl"
    (wheel / "include").mkdir(parents=True)
    (wheel / "lib").mkdir()
    (wheel / "include" / "nccl.h").write_text("header", encoding="utf-8")
    (wheel / "lib" / "libnccl.so.2").write_text("library", encoding="utf-8")
    folder = linkable_nccl(wheel, tmp_path / "scratch")
    assert (folder / "include" / "nccl.h").read_text(encoding="utf-8") == "header"
    assert (folder / "lib" / "libnccl.so").read_text(encoding="utf-8") == "library"
