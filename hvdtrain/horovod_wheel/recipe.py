"""Everything that decides the bytes of the Horovod wheel, and the key that is computed from it."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

from hvdtrain.errors import UsageError
from hvdtrain.horovod_wheel.cuda import Gpu, find_gpu
from hvdtrain.horovod_wheel.pip_packages import installed_version
from hvdtrain.horovod_wheel.source import HOROVOD_VERSION, SDIST_SHA256, patches_digest
from hvdtrain.horovod_wheel.toolchain import (
    FLAG_VARIABLES,
    Mpi,
    architecture_flags,
    compiler_version,
    find_compiler,
)

# Raised by hand when the way of building changes without any other field changing.
BUILD_REVISION = 1

# A library of each framework's wheel that Horovod links with: two builds of one version differ in its hash.
_CORE_LIBRARY = {"torch": "torch/lib/libtorch_cpu.so", "tensorflow": "tensorflow/libtensorflow_framework.so.2"}


@dataclass(frozen=True)
class Framework:
    """A framework that Horovod is built for: name, exact version, and the hash of its core library ("" if unknown)."""

    name: str
    version: str
    library: str


@dataclass(frozen=True)
class Recipe:
    """All that decides the binary. Two equal recipes may share a wheel; two that differ in anything may not."""

    revision: int
    horovod: str
    sdist_sha256: str
    edits: str
    python_abi: str
    platform: str
    frameworks: tuple[Framework, ...]
    mpi: Mpi
    compiler: str
    architecture: str
    flags: tuple[tuple[str, str], ...]
    gpu: Gpu | None

    def key(self) -> str:
        """16 hexadecimal digits of a hash over every field."""
        fields = asdict(self)
        if self.gpu is not None:
            del fields["gpu"]["nccl_folder"], fields["gpu"]["toolkit_folder"]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def version(self) -> str:
        """The version that the wheel bears: an installed Horovod tells by it which recipe it came from."""
        return f"{self.horovod}+h{self.key()}"

    def framework_names(self) -> frozenset[str]:
        return frozenset(framework.name for framework in self.frameworks)

    def describe(self, without_gpu: str) -> str:
        """One line for the user; `without_gpu` says why there is no NCCL, if there is none."""
        frameworks = ", ".join(f"{framework.name} {framework.version}" for framework in self.frameworks)
        return f"Horovod {self.horovod} for {frameworks}; MPI: {self.mpi}; NCCL: {self.gpu or f'off, {without_gpu}'}"


def find_recipe(mpi: Mpi) -> Recipe:
    """The recipe of this Python's environment; UsageError: there is neither framework, or no C++ compiler."""
    gpu = find_gpu()
    return Recipe(
        revision=BUILD_REVISION,
        horovod=HOROVOD_VERSION,
        sdist_sha256=SDIST_SHA256,
        edits=patches_digest(),
        python_abi=str(sysconfig.get_config_var("SOABI")),
        platform=" ".join([platform.machine(), *platform.libc_ver()]),
        frameworks=find_frameworks(),
        mpi=mpi,
        compiler=compiler_version(find_compiler()),
        architecture=architecture_flags(Path("/proc/cpuinfo").read_text(encoding="utf-8")),
        flags=tuple((name, os.environ[name]) for name in FLAG_VARIABLES if name in os.environ),
        gpu=gpu if isinstance(gpu, Gpu) else None,
    )


def find_frameworks() -> tuple[Framework, ...]:
    """The frameworks that are installed in this environment. Raises `UsageError` if none is."""
    frameworks = []
    for name, library in _CORE_LIBRARY.items():
        version = installed_version(name)
        if version is not None:
            record = importlib.metadata.distribution(name).read_text("RECORD") or ""
            match = re.search(rf"^{re.escape(library)},([^,]+),", record, flags=re.MULTILINE)
            frameworks.append(Framework(name, version, match[1] if match else ""))
    if not frameworks:
        raise UsageError(
            "Neither torch nor tensorflow is installed in this environment.",
            "Horovod is built for the frameworks that are there, and there is none.",
            "install hvdtrain with an extra: `make setup EXTRAS=torch` or `make setup EXTRAS=tensorflow`.",
        )
    return tuple(frameworks)
