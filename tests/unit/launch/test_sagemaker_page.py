"""What docs/sagemaker.md shows as a dry run gives a request that SageMaker's service model accepts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hvdtrain.launch.sagemaker import Estimator, PipePlanInput, TrainingInput, TrainingSpec
from hvdtrain.launch.sagemaker.inputs import Input
from hvdtrain.launch.sagemaker.request_shape import require_valid_request
from hvdtrain.launch.sagemaker.script import script

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sagemaker.md").read_text()
BLOCKS = {
    language: re.findall(rf"<!-- dry run -->\n```{language}\n(.*?)```", PAGE, re.DOTALL)
    for language in ("bash", "python")
}


def test_the_command_that_is_shown(tmp_path: Path) -> None:
    (block,) = BLOCKS["bash"]
    _make_source(tmp_path)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    request = json.loads(done.stdout)
    assert require_valid_request(request)
    assert request["ResourceConfig"]["InstanceCount"] == 2


def _make_source(folder: Path) -> None:
    (folder / "src").mkdir()
    shutil.copy(ROOT / "examples" / "wine_torch.py", folder / "src")


def test_the_python_that_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = BLOCKS["python"]
    _make_source(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block, "docs/sagemaker.md", "exec"), names)
    assert require_valid_request(names["request"])
    pipes = [each for each in names["request"]["InputDataConfig"] if each["ChannelName"].startswith("train-")]
    assert len(pipes) == names["estimator"].spec.processes_per_host


CLOUD: dict[str, Any] = {
    "role": "arn:aws:iam::111122223333:role/train",
    "image": "111122223333.dkr.ecr.us-east-1.amazonaws.com/hvdtrain:1",
    "output_path": "s3://bucket/jobs",
    "instance_type": "ml.p3.8xlarge",
}
JOBS: list[tuple[TrainingSpec, dict[str, Input]]] = [
    (TrainingSpec(task="digits", **CLOUD), {"train": "s3://bucket/a"}),
    (
        TrainingSpec(
            entry_point="train.py",
            hyperparameters={"note": 'say "hi"\n', "amp": True, "lr": 0.1},
            subnets=("subnet-1",),
            security_group_ids=("sg-1", "sg-2"),
            environment={"A": "'"},
            **CLOUD,
        ),
        {"train": TrainingInput("s3://bucket/a", input_mode="FastFile", content_type="x/y"), "b": "s3://bucket/b"},
    ),
]


@pytest.mark.parametrize("number", range(len(JOBS)))
def test_a_script_asks_for_what_it_was_made_from(number: int) -> None:
    spec, inputs = JOBS[number]
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(script(spec, inputs, "A job.", "job.py"), "job.py", "exec"), names)
    estimator = names["estimator"]
    assert isinstance(estimator, Estimator)
    assert (estimator.spec, names["inputs"]) == (spec, inputs)


def test_a_script_names_a_plan() -> None:
    text = script(TrainingSpec(task="digits"), {"train": PipePlanInput("plans", 7)}, "A job.", "job.py")
    assert 'PipePlanInput("plans", shuffle_seed=7)' in text
