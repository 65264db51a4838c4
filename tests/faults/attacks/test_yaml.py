"""YAML that is read builds no objects."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from trap import Trap

from hvdtrain.cli.main import main


def objects(trap: Trap) -> dict[str, str]:
    """Kind → a value that builds an object."""
    return {
        "apply": f'!!python/object/apply:os.system ["{trap.command}"]',
        "apply without a shell": f'!!python/object/apply:os.mknod ["{trap.mark}"]',
        "new": f'!!python/object/new:os.system ["{trap.command}"]',
    }


@pytest.mark.parametrize("key", ["lr", "task_args", "unknown"])
@pytest.mark.parametrize("kind", ["apply", "apply without a shell", "new"])
def test_yaml_that_builds_objects_is_refused(
    kind: str, key: str, trap: Trap, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"{key}: {objects(trap)[kind]}\n")
    trap.require_sprung_by(lambda: yaml.unsafe_load(file.read_text()))
    assert main(["train", "--config", str(file)]) == 2
    assert "is not plain YAML" in capsys.readouterr().err
    trap.require_unsprung()


@pytest.mark.parametrize("kind", ["apply", "new"])
def test_an_option_whose_value_is_yaml_builds_none(kind: str, trap: Trap) -> None:
    """Values in a command line are read as YAML too."""
    value = objects(trap)[kind]
    trap.require_sprung_by(lambda: yaml.unsafe_load(value))
    for option in ("--lr", "--task-args.a", "--seed"):
        assert main(["train", option, value, "--dry-run"]) == 2
        trap.require_unsprung()
