"""What a built wheel holds, and that modules of ours are ours whatever files lie in the user's folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from hvdtrain.version import __version__

ROOT = Path(__file__).parents[2]
SOURCES = ("hvdtrain", "data_sharding", "launch", "examples")
FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.py")
PLACES = {
    "hvdtrain": "hvdtrain/",
    "data_sharding": "data_sharding/",
    "examples": "{data}share/hvdtrain/examples/",
    "launch": "{data}share/hvdtrain/launch/",
}
"""Where the wheel has the files of each folder."""
SHADOWS = ("launch", "data_sharding", "config")
LOADED = (
    "import sys, hvdtrain.launch.sagemaker as s, hvdtrain.run.training; from data_sharding import Catalog;"
    "assert s.Estimator.__module__ == 'hvdtrain.launch.sagemaker.estimator'; print(s.__file__)"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy of the sources: setuptools also packs what earlier builds have left beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", "."]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    (built,) = (folder / "dist").glob("*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture
def users_folder(tmp_path: Path) -> Path:
    """With files that bear the names of folders of ours."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('the {name}.py of the user')", encoding="utf-8")
    return tmp_path


def test_the_wheel_has_every_file_and_no_other_name_at_its_top(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    data = f"hvdtrain-{_metadata(wheel)['Version']}.data/data/"
    wanted = set()
    for folder, place in PLACES.items():
        files = (Path(at, file) for at, _, own in os.walk(ROOT / folder, followlinks=True) for file in own)
        place = place.format(data=data)
        wanted |= {place + path.relative_to(ROOT / folder).as_posix() for path in files if path.suffix != ".pyc"}
    assert names == wanted
    for name in ("hvdtrain/py.typed", "data_sharding/py.typed", "hvdtrain/launch/sagemaker/train.sh"):
        assert name in names


def test_the_metadata_say_who_where_and_for_what(wheel: zipfile.ZipFile) -> None:
    metadata = _metadata(wheel)
    assert metadata["Author"] == "The hvdtrain developers"
    assert metadata.get_all("Project-URL")
    classifiers = metadata.get_all("Classifier") or []
    assert "Operating System :: POSIX :: Linux" in classifiers
    for minor in (11, 12, 13):
        assert f"Programming Language :: Python :: 3.{minor}" in classifiers


def test_installed_modules_are_ours_beside_files_of_the_same_names(
    wheel: zipfile.ZipFile, users_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = tmp_path_factory.mktemp("site")
    wheel.extractall(site)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=users_folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stdout.strip()) == (0, str(site / "hvdtrain" / "launch" / "sagemaker" / "__init__.py"))


def test_data_sharding_can_be_installed_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data_sharding"
    shutil.copytree(ROOT / "data_sharding", folder, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        "dist",
        str(folder),
    ]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=300)
    (built,) = (tmp_path / "dist").glob("*.whl")
    alone = zipfile.ZipFile(built)
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "data_sharding").rglob("*.py")}
    assert {name for name in alone.namelist() if name.endswith(".py")} == modules
    ours = tomllib.loads((ROOT / "data_sharding" / "pyproject.toml").read_text())["project"]
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert ours["version"] == __version__
    assert set(ours["dependencies"]) <= set(whole["dependencies"])
    extras = whole["optional-dependencies"]
    assert all(packages == extras[name] for name, packages in ours["optional-dependencies"].items())
    alone.extractall(tmp_path / "site")
    script = "import sys, data_sharding as d; print(len(d.Catalog.of([1.0])), d.__file__, 'hvdtrain' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "site",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert (run.returncode, run.stdout.strip()) == (0, f"1 {tmp_path / 'site' / 'data_sharding' / '__init__.py'} False")


def test_commands_run_beside_files_of_the_same_names(users_folder: Path) -> None:
    for words in (["launch", "local", "-np", "2", "--dry-run"], ["train", "--dry-run"], ["shard", "--help"]):
        command = [sys.executable, "-m", "hvdtrain", *words]
        run = subprocess.run(command, cwd=users_folder, capture_output=True, text=True, timeout=120, check=False)
        assert run.returncode == 0, run.stderr


def _metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())
