"""`make setup`: what it depends on, what it refuses, and that it needs nothing installed."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.horovod_wheel import SUPPORTED, require_supported
from hvdtrain.horovod_wheel.environment import DEFAULT_EXTRAS, EXTRAS, chosen_extras, digest, set_up, write_line
from hvdtrain.horovod_wheel.pip_packages import pins_of
from hvdtrain.horovod_wheel.recipe import Recipe, find_recipe
from hvdtrain.horovod_wheel.source import verify
from hvdtrain.horovod_wheel.toolchain import Mpi, find_mpi
from hvdtrain.horovod_wheel.wheel_build import build_environment, cmake_arguments, parallel_jobs, usual_minutes

ROOT = Path(__file__).parents[3]
FILES = ("pyproject.toml", "constraints.txt", "setup.py", "hvdtrain/version.py")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the files that the set-up depends on."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def recipe() -> Recipe:
    """The recipe of the environment in which the tests run."""
    mpi = find_mpi()
    assert mpi is not None
    return find_recipe(mpi)


def test_it_runs_on_a_bare_interpreter() -> None:
    """-S leaves out site-packages, -I everything of the user's."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import hvdtrain.horovod_wheel.command_line"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)


def test_nothing_to_do_is_found_out_at_once_and_a_change_of_any_file_or_extra_is_seen(project: Path) -> None:
    venv = project / ".venv"
    first = digest(project, venv, "torch,dev")
    assert digest(project, venv, "dev,torch") == first
    different = {digest(project, venv, "torch"), digest(project, project / "other", "torch,dev")}
    for name in FILES:
        with open(project / name, "a", encoding="utf-8") as file:
            file.write("\n# changed\n")
        different.add(digest(project, venv, "torch,dev"))
    assert len(different) == len(FILES) + 2
    assert first not in different


def test_a_stamp_that_fits_means_no_work(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    venv = project / ".venv"
    venv.mkdir()
    (venv / "hvdtrain-setup").write_text(digest(project, venv, "torch") + "\n", encoding="utf-8")
    set_up(project, venv, "torch")
    assert "nothing changed" in capsys.readouterr().out
    assert [entry.name for entry in venv.iterdir()] == ["hvdtrain-setup"]


def test_a_failed_setup_leaves_no_stamp(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip fails for real: no index, and a folder for constraints that pin what cannot be had."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(project))
    venv = project / ".venv"
    with pytest.raises(HvdtrainError, match="pip install uv setuptools wheel` failed"):
        set_up(project, venv, "torch")
    assert (venv / "bin" / "python").exists()
    assert not (venv / "hvdtrain-setup").exists()
    assert chosen_extras(project, venv, None, "") == "torch"


def test_the_supported_pythons_are_the_same_everywhere() -> None:
    for version in SUPPORTED:
        require_supported(version)
    (_, oldest), (_, newest) = SUPPORTED[0], SUPPORTED[-1]
    for version in ((3, oldest - 1), (3, newest + 1), (4, 0)):
        with pytest.raises(UsageError, match=rf"This is Python {version[0]}\.{version[1]}\."):
            require_supported(version)
    names = " ".join(f"python3.{minor}" for minor in range(newest, oldest - 1, -1))
    assert f" {names} python3\n" in (ROOT / "Makefile").read_text(encoding="utf-8")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert requires == f">=3.{oldest},<3.{newest + 1}"


def test_an_unsupported_python_is_refused_before_anything_that_it_cannot_import() -> None:
    """This Python, that says it is 3.10; and every file that it imports until then, by the grammar of Python 3.8."""
    code = (
        "import runpy, sys; sys.version_info = (3, 10, 13, 'final', 0)\n"
        "try: runpy.run_module('hvdtrain.horovod_wheel', run_name='__main__')\n"
        "finally: print(*(m.__file__ for n, m in sys.modules.items() if n.partition('.')[0] == 'hvdtrain'), sep='\\n')"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 2
    assert run.stderr.startswith("ERROR: This is Python 3.10. ")
    assert "Traceback" not in run.stderr
    files = [Path(line) for line in run.stdout.splitlines()]
    assert {file.stem for file in files} == {"__init__", "errors", "version"}
    for file in files:
        ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_real_old_python_gets_the_sentence() -> None:
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*versions.glob("3.8.*/bin/python"), *versions.glob("3.10.*/bin/python")]
    if not found:
        pytest.skip("there is no old Python here")
    for python in found:
        command = [python, "-m", "hvdtrain.horovod_wheel", "setup"]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert (run.returncode, run.stderr.partition("This is Python 3.")[0]) == (2, "ERROR: ")


def test_the_extras_of_the_last_setup_are_kept_and_dev_comes_to_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert chosen_extras(ROOT, tmp_path, None, "") == DEFAULT_EXTRAS
    assert capsys.readouterr().out == ""
    assert chosen_extras(ROOT, tmp_path, None, "dev") == f"{DEFAULT_EXTRAS},dev"
    assert capsys.readouterr().out == f"setup: dev is added to {DEFAULT_EXTRAS}: checks and tests need it\n"
    write_line(tmp_path / EXTRAS, "torch,mpi")
    assert chosen_extras(ROOT, tmp_path, None, "") == "torch,mpi"
    assert capsys.readouterr().out == ""
    assert chosen_extras(ROOT, tmp_path, None, "dev") == "torch,mpi,dev"
    assert capsys.readouterr().out == "setup: dev is added to torch,mpi: checks and tests need it\n"
    assert chosen_extras(ROOT, tmp_path, "tensorflow, mpi", "") == "tensorflow,mpi"
    with pytest.raises(UsageError, match="did you mean 'torch'"):
        chosen_extras(ROOT, tmp_path, "tourch", "")


def test_a_setup_without_extras_asks_for_those_of_the_last_one(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = project / ".venv"
    venv.mkdir()
    write_line(venv / EXTRAS, "torch,mpi")
    (venv / "hvdtrain-setup").write_text(digest(project, venv, "torch,mpi") + "\n", encoding="utf-8")
    set_up(project, venv, None)
    assert "nothing changed" in capsys.readouterr().out


def chosen_python(venv: Path, path: Path, *words: str) -> str:
    """With which Python `make setup` would set `venv` up, where `path` comes first on the path."""
    command = ["make", "-n", "setup", f"VENV={venv}", *words]
    environment = {"PATH": f"{path}:/usr/bin:/bin"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return re.findall(r"(\S+) -m hvdtrain\.horovod_wheel setup", run.stdout)[0]


def test_make_takes_the_newest_python_that_runs_and_keeps_to_it(tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    (path / "python3.13").write_text("#!/bin/sh\nexit 127\n", encoding="utf-8")  # as pyenv's shims do
    (path / "python3.12").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    for program in path.iterdir():
        program.chmod(0o755)
    venv = tmp_path / "venv"
    assert chosen_python(venv, path) == "python3.12"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=60)
    assert os.path.realpath(chosen_python(venv, path)) == os.path.realpath(sys.executable)
    assert chosen_python(venv, path, "PYTHON=python3.12") == "python3.12"


def test_what_the_user_has_to_install_ends_with_exit_code_2_and_a_hint(project: Path) -> None:
    """The real command line, with a cache folder that cannot be made."""
    command = [sys.executable, "-m", "hvdtrain.horovod_wheel", "install"]
    environment = {**os.environ, "HVDTRAIN_CACHE_DIR": str(project / "setup.py" / "below"), "CXXFLAGS": "-DANOTHER"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "HINT: set HVDTRAIN_CACHE_DIR" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_build_sees_no_setting_of_another_build(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOROVOD_GPU_OPERATIONS", "HOROVOD_WITHOUT_GLOO", "CMAKE_GENERATOR", "MAKELEVEL", "CCL_ROOT"):
        monkeypatch.setenv(name, "foreign")
    environment = build_environment(recipe, 3, tmp_path)
    assert "foreign" not in environment.values()
    assert environment["MAKEFLAGS"] == "-j3"
    assert environment["HOROVOD_WITH_PYTORCH"] == environment["HOROVOD_WITH_MPI"] == "1"
    assert environment["PATH"].startswith(os.path.join(sys.prefix, "bin") + os.pathsep)


def test_without_a_newer_python_there_is_nothing_to_try(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path), "PYENV_ROOT": str(tmp_path), "HOME": str(tmp_path)}
    command = [sys.executable, ROOT / "tests" / "newest_python.py"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(r"newest: (there is no Python 3\.13 here|the other tests have run).*\n", run.stdout)


def test_libraries_are_found_relative_to_the_extension_unless_mpi_is_the_systems(recipe: Recipe) -> None:
    wheel = cmake_arguments(replace(recipe, mpi=Mpi("wheel", "5.0.11", "")))
    system = cmake_arguments(replace(recipe, mpi=Mpi("system", "4.1.4", "/usr/bin/mpicxx g++ -lmpi")))
    assert not any(sys.prefix in argument for argument in wheel)
    assert "-DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON" not in wheel
    assert "-DCMAKE_INSTALL_RPATH_USE_LINK_PATH=ON" in system


def test_the_number_of_jobs_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDTRAIN_BUILD_JOBS", "7")
    assert parallel_jobs() == 7
    monkeypatch.setenv("HVDTRAIN_BUILD_JOBS", "many")
    assert 1 <= parallel_jobs() <= len(os.sched_getaffinity(0))


def test_more_cores_never_take_longer(recipe: Recipe) -> None:
    minutes = [usual_minutes(recipe, jobs) for jobs in range(1, 65)]
    assert minutes == sorted(minutes, reverse=True)
    assert minutes[-1] >= 1


def test_a_source_release_that_is_not_the_pinned_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "horovod-0.28.1.tar.gz"
    file.write_bytes(b"something else")
    with pytest.raises(HvdtrainError, match="The SHA-256 of"):
        verify(file)


def test_pins_leave_out_ourselves_cuda_and_local_versions() -> None:
    frozen = (
        "# Editable install with no version control (hvdtrain==0.1.0)\n-e /some/where\nhorovod==0.28.1+habc\n"
        "numpy==2.4.6\nnvidia-nccl-cu13==2.28.9\npip==23.2.1\ntorch==2.13.0+cpu\ntriton==3.7.0\n"
    )
    assert pins_of(frozen) == "numpy==2.4.6\ntorch==2.13.0\n"


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + [name for extra in project["optional-dependencies"].values() for name in extra]
    pinned = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()}
    names = {re.split(r"[<>=!;\[ ]", requirement)[0] for requirement in wanted}
    by_torch = {"cuda-toolkit"}  # torch's CUDA build requires one version of it, and that one version of each part
    assert {normal(name) for name in names - by_torch} <= {normal(name) for name in pinned}


def normal(name: str) -> str:
    """PEP 503: case and the kind of separator do not matter in the name of a package."""
    return re.sub(r"[-_.]+", "-", name).lower()
