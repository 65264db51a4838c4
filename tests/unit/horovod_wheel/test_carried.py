"""Set-up without a network: what is looked for where, and what is refused. `docs/gpu.md` says how it ran as a whole."""

import ensurepip
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvdtrain.errors import HvdtrainError, UsageError
from hvdtrain.horovod_wheel.carried import carry, install_pip, open_to_this_python, pins_beside, use, versions_in
from hvdtrain.horovod_wheel.pip_packages import uv_command

PINS = "numpy==2.3.5\ngoogle-crc32c==1.7.1\ntyping_extensions==4.15.0\n"


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """A folder with a wheel of pip, as this Python brings one."""
    folder = tmp_path / "carried"
    folder.mkdir()
    for wheel in (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl"):
        shutil.copy(wheel, folder)
    return folder


def test_versions_are_read_by_the_names_that_pypi_compares() -> None:
    listed = "Google_CRC32C==1.7.1\n# numpy==1\ntorch==2.11.0+cu130\ncffi==2.0 ; python_version > '3.8'\n-e git+x\n"
    assert versions_in(listed) == {"google-crc32c": "1.7.1", "torch": "2.11.0+cu130", "cffi": "2.0"}


def test_what_is_there_already_keeps_its_version() -> None:
    assert pins_beside(PINS, {"numpy": "2.5.2", "typing-extensions": "4.1"}) == "google-crc32c==1.7.1\n"


def test_an_environment_without_a_network_sees_the_packages_of_its_python(tmp_path: Path, carried: Path) -> None:
    venv, pins = tmp_path / "venv", tmp_path / "constraints.txt"
    pins.write_text(f"{PINS}no-such-package==1.0\n", encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=60)
    install_pip(venv, carried)
    left = open_to_this_python(venv, pins).read_text(encoding="utf-8")
    assert left == "no-such-package==1.0\n"
    asked = "import sys, numpy, pip; print([package.__file__.startswith(sys.prefix) for package in (numpy, pip)])"
    command = [str(venv / "bin" / "python"), "-c", asked]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "[False, True]\n"


def test_a_folder_that_was_not_filled_is_refused(tmp_path: Path, carried: Path) -> None:
    with pytest.raises(UsageError, match="no source release of Horovod in"):
        use(carried)
    with pytest.raises(UsageError, match="no wheel of pip in"):
        install_pip(tmp_path / "venv", tmp_path)


@pytest.mark.parametrize(("content", "said"), [(None, "cannot be read"), ("torch 2.11\n", "has no line NAME==VERSION")])
def test_a_list_of_packages_that_lists_none_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    there = tmp_path / "there.txt"
    if content is not None:
        there.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        carry(Path(__file__).parents[3], tmp_path / "carried", "torch", there, "3.12")
    assert not (tmp_path / "carried").exists()


def test_pip_that_cannot_be_installed_ends_set_up_in_words(tmp_path: Path, carried: Path) -> None:
    (wheel,) = carried.glob("pip-*.whl")
    wheel.write_bytes(b"cut short")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=60)
    with pytest.raises(HvdtrainError, match="failed: "):
        install_pip(tmp_path / "venv", carried)


def test_packages_for_another_machine_are_found_out_by_uv_only(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    with pytest.raises(UsageError, match=f"{python} has no uv, or pip's configuration says"):
        uv_command(str(python), "compile")
