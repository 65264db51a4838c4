"""The key of a wheel: equal for equal recipes, different as soon as anything differs that decides the binary."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hvdtrain.horovod_wheel.cuda import Gpu
from hvdtrain.horovod_wheel.recipe import Framework, Recipe, find_frameworks, find_recipe
from hvdtrain.horovod_wheel.toolchain import Mpi, choose_mpi, find_mpi, usable_mpicxx

WORDS = st.text(min_size=1, max_size=12)
MPIS = st.builds(Mpi, kind=st.sampled_from(["wheel", "system"]), version=WORDS, location=WORDS)
GPUS = st.builds(
    Gpu,
    toolkit_folder=st.just("/anywhere"),
    nccl_folder=st.just("/anywhere"),
    **{name: WORDS for name in ("torch_cuda", "nvcc", "toolkit", "architectures", "nccl")},
)
FRAMEWORKS = st.lists(st.builds(Framework, name=WORDS, version=WORDS, library=WORDS), min_size=1, max_size=2)
RECIPES = st.builds(
    Recipe,
    revision=st.integers(1, 9),
    frameworks=FRAMEWORKS.map(tuple),
    mpi=MPIS,
    gpu=st.none() | GPUS,
    flags=st.lists(st.tuples(WORDS, WORDS), max_size=2).map(tuple),
    **{
        name: WORDS
        for name in ("horovod", "sdist_sha256", "edits", "python_abi", "platform", "compiler", "architecture")
    },
)
FIELDS = [field.name for field in dataclasses.fields(Recipe)]


@given(recipe=RECIPES, other=RECIPES, name=st.sampled_from(FIELDS))
def test_the_key_changes_with_any_field_and_with_nothing_else(recipe: Recipe, other: Recipe, name: str) -> None:
    changed = dataclasses.replace(recipe, **{name: getattr(other, name)})
    assert (changed.key() == recipe.key()) == (changed == recipe)


@given(recipe=RECIPES, gpu=GPUS)
def test_where_cuda_and_nccl_are_installed_decides_nothing(recipe: Recipe, gpu: Gpu) -> None:
    here = dataclasses.replace(recipe, gpu=gpu)
    there = dataclasses.replace(recipe, gpu=dataclasses.replace(gpu, nccl_folder="/there", toolkit_folder="/there"))
    assert here.key() == there.key()


def test_the_key_is_the_same_in_another_process() -> None:
    mpi = find_mpi()
    assert mpi is not None
    code = (
        "from hvdtrain.horovod_wheel.toolchain import find_mpi; from hvdtrain.horovod_wheel.recipe import find_recipe;"
        "print(find_recipe(find_mpi()).key())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == find_recipe(mpi).key()


def test_the_version_of_the_wheel_bears_the_key() -> None:
    mpi = find_mpi()
    assert mpi is not None
    recipe = find_recipe(mpi)
    assert recipe.version() == f"0.28.1+h{recipe.key()}"


def test_the_installed_frameworks_are_found_with_their_exact_versions() -> None:
    found = {framework.name: framework for framework in find_frameworks()}
    assert found["torch"].version.partition("+")[0] == torch.__version__.partition("+")[0]  # CUDA builds differ here
    assert found["torch"].library.startswith("sha256=")


def test_the_wheel_in_the_environment_goes_before_the_systems_mpi(tmp_path: Path) -> None:
    program = tmp_path / "mpicxx"
    program.write_text("#!/bin/sh\necho g++ -lmpi\n")
    program.chmod(0o755)
    assert choose_mpi(None, None) is None
    assert choose_mpi("5.0.11", None) == choose_mpi("5.0.11", str(program)) == Mpi("wheel", "Open MPI 5.0.11", "")
    system = choose_mpi(None, str(program))
    assert system is not None
    assert (system.kind, system.location) == ("system", f"{program} g++ -lmpi")


@pytest.mark.parametrize(("headers", "usable"), [(True, True), (False, False)])
def test_an_mpicxx_without_headers_is_no_mpi(tmp_path: Path, headers: bool, usable: bool) -> None:
    """As Debian's openmpi-bin without libopenmpi-dev."""
    wrapper = tmp_path / "mpicxx"
    wrapper.write_text(f'#!/bin/sh\nexec g++ -nostdinc -I "{tmp_path}/include" "$@"\n')
    wrapper.chmod(0o755)
    if headers:
        (tmp_path / "include").mkdir()
        (tmp_path / "include" / "mpi.h").write_text("int MPI_Init(int *, char ***);")
    assert usable_mpicxx(str(tmp_path)) == (str(wrapper) if usable else None)
