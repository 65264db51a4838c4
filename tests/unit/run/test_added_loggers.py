"""A logger of another package: one file and one entry point, and `--loggers` knows its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.added_packages import install
from support.commands import run

MODULE = '''
import json

from hvdtrain.run.sinks.logger_api import Logger

class Journal:
    """All points in a file of the run folder, and how the run ended."""

    def __init__(self, folder, step):
        self.file = (folder / "journal.jsonl").open("a")
        print(json.dumps(["begin", step]), file=self.file)

    def write(self, points):
        for point in points:
            print(json.dumps([point.step, dict(point.values)]), file=self.file)

    def close(self, outcome):
        print(json.dumps(["end", outcome]), file=self.file)
        self.file.close()

JOURNAL = Logger("Journal", lambda run, step: Journal(run.folder.path, step))
NO_LOGGER = Journal
'''
POINTS = (
    "[hvdtrain.loggers]\njournal = a_journal:JOURNAL\nno-logger = a_journal:NO_LOGGER\nno-module = a_diary:JOURNAL\n"
)
SHORT = ["--max-steps", "2", "--global-batch-size", "32", "--epochs", "1", "--output-dir", "out"]


@pytest.fixture
def package(tmp_path: Path) -> dict[str, str]:
    """An installed package; returns the environment in which it is."""
    return install(tmp_path, "a-journal", MODULE, POINTS)


def test_it_has_what_a_training_has_measured(package: dict[str, str], tmp_path: Path) -> None:
    done = run([*SHORT, "--loggers", "journal"], tmp_path, package)
    assert done.code == 0, done
    assert "WARNING" not in done.stderr, done
    first, *points, last = map(json.loads, (tmp_path / "out" / "journal.jsonl").read_text().splitlines())
    assert (first, last[0]) == (["begin", 0], "end")
    training = [values for _, values in points if "train/loss" in values]
    assert [step for step, values in points if "train/loss" in values][-1] == 2
    assert training[-1].keys() >= {"lr", "samples_per_second", "memory", "seconds/data", "seconds/forward"}
    assert any("validation/loss" in values for _, values in points)


@pytest.mark.parametrize(
    ("loggers", "facts"),
    [
        ("jornal", ["there is no logger 'jornal'", "did you mean 'journal'?"]),
        ("no-logger", ["'no-logger' of another package is of type type"]),
        ("no-module", ["cannot be imported from a_diary:JOURNAL", "a-journal"]),
    ],
)
def test_what_is_refused_before_training(
    package: dict[str, str], tmp_path: Path, loggers: str, facts: list[str]
) -> None:
    run([*SHORT, "--loggers", loggers], tmp_path, package).require_refusal(*facts)
    assert not (tmp_path / "out" / "metrics.jsonl").exists()
