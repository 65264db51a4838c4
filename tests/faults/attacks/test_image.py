"""The image runs as a user without rights and with a root that nobody can write: from the text of its files.

tests/docker builds the image and runs it so, where there is an engine.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from hvdtrain.cli.main import main

ROOT = Path(__file__).parents[3]
WRITABLE = ("/runs", "/data", "/tmp", "/workspace/runs")
"""What docs/docker.md says is written to; the last one is a link to the first."""


def docker_stages() -> ModuleType:
    path = ROOT / "tests" / "unit" / "docker" / "support" / "docker_stages.py"
    spec = importlib.util.spec_from_file_location("docker_stages_of_attacks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


STAGES = docker_stages()
CARELESS = "FROM python:3.11 AS image\nENV HVDTRAIN_CACHE_DIR=/root/.cache\nCMD python train.py\n"
"""An image of root, that writes into its own root."""


def user_of(text: str) -> str:
    """Who runs its command."""
    named = STAGES.stages(text)[1][-1].values("USER")
    return str(named[-1]) if named else "root"


def places_outside(text: str) -> list[str]:
    """Folders that variables of the image name for files, and that are not among those that may be written."""
    variables = STAGES.environment(STAGES.stages(text)[1][-1])
    folders = [value for name, value in variables.items() if re.search(r"(CACHE|TMP|HOME)(_DIR|DIR)?$", name)]
    return [folder for folder in folders if not folder.startswith(WRITABLE)]


def test_nothing_runs_as_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert user_of(CARELESS) == "root"
    assert user_of(text) == "1000:1000"
    stage = STAGES.stages(text)[1][-1]
    words = [word for word, _ in stage.instructions]
    assert not {"RUN", "COPY", "ADD"} & set(words[words.index("USER") :]), "nothing is made after that"
    assert not re.search(r"\bsudo\b|\bsetuid\b|chmod\s+\S*[4267]\d{3}\b", " ".join(stage.values("RUN")))


def test_the_root_need_not_be_writable() -> None:
    """Caches, runs and where Python writes are in volumes or in /tmp."""
    text = (ROOT / "Dockerfile").read_text()
    assert places_outside(CARELESS) == ["/root/.cache"]
    assert places_outside(text) == []
    stage = STAGES.stages(text)[1][-1]
    variables = STAGES.environment(stage)
    assert variables["HVDTRAIN_CACHE_DIR"].startswith("/tmp")
    assert stage.values("WORKDIR")[-1] == "/workspace", "runs/ in it is a link to the volume"
    assert "ln --symbolic /runs /workspace/runs" in " ".join(stage.values("RUN"))
    assert {"/runs", "/data"} <= set(volumes(stage))


def volumes(stage: Any) -> list[str]:
    found: list[str] = []
    for value in stage.values("VOLUME"):
        found += json.loads(value) if value.startswith("[") else shlex.split(value)
    return found


def test_services_of_the_example_may_do_nothing_else() -> None:
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert set(service["tmpfs"]) <= {"/tmp", "/home/hvdtrain/.horovod"}, name
        assert "user" not in service or str(service["user"]) != "0", name


def test_pods_of_an_mpijob_may_not_be_of_root(capsys: pytest.CaptureFixture[str]) -> None:
    """Kubernetes then refuses an image that would run as root."""
    words = ["-np", "2", "--image", "hvdtrain", "--slots-per-host", "1", "--dry-run", "--", "train"]
    assert main(["launch", "kubernetes", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.count("runAsNonRoot: true") == shown.count("containers:") > 0
    assert "privileged: true" not in shown
