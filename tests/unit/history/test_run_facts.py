"""What is known of a run from its folder, whatever state the folder is in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.run_folders import FakeRun

from hvdtrain.errors import UsageError
from hvdtrain.history.run_facts import is_run, read_facts


def test_the_facts_of_a_whole_run(tmp_path: Path) -> None:
    facts = read_facts(FakeRun.begun(tmp_path / "run").ended().folder)
    assert facts.problems == ()
    assert facts.path == tmp_path / "run"
    assert facts.config["data"]["shuffle"] == "global"
    assert facts.environment["topology"]["size"] == 2
    assert facts.result is not None
    assert facts.result["metrics"]["accuracy"] == 0.9


def test_a_run_without_a_result_is_no_problem(tmp_path: Path) -> None:
    facts = read_facts(FakeRun.begun(tmp_path / "run").folder)
    assert (facts.result, facts.problems) == (None, ())


BROKEN = {
    "half written": (b'{"a": ', b"a: [1, ", "is damaged or half written."),
    "binary": (b"\x00\xff\xfe", b"\x00\xff\xfe", "is damaged or half written."),
    "no mapping": (b"[1]", b"- 1", "holds no keys."),
    "empty": (b"", b"", None),
    "nested": (b"[" * 100_000, b"[" * 2_000, "is damaged or half written."),
    "a tag": (b"{'a': 1}", b"a: !!python/object/apply:os.getpid []", "is damaged or half written."),
}


@pytest.mark.parametrize("case", BROKEN)
def test_each_broken_file_is_a_sentence_and_the_others_are_read(case: str, tmp_path: Path) -> None:
    as_json, as_yaml, sentence = BROKEN[case]
    for name, content in (("config.yaml", as_yaml), ("env.json", as_json), ("result.json", as_json)):
        run = FakeRun.begun(tmp_path / name).ended().folder
        (run / name).write_bytes(content)
        facts = read_facts(run)
        (problem,) = facts.problems
        assert problem.startswith(f"{name} ")
        assert sentence is None or problem == f"{name} {sentence}"
        read = {"config.yaml": facts.config, "env.json": facts.environment, "result.json": facts.result}
        assert {key for key, value in read.items() if not value} == {name}


def test_missing_files_are_said(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("")
    assert read_facts(tmp_path).problems == ("config.yaml is missing.", "env.json is missing.")


def test_what_is_too_large_or_no_file_is_not_read(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path / "run").folder
    with (run / "config.yaml").open("wb") as file:
        file.truncate(2**40)
    (run / "env.json").unlink()
    os.mkfifo(run / "env.json")
    (run / "result.json").mkdir()
    assert read_facts(run).problems == (
        "config.yaml is larger than 1 MiB, so that no run can have written it.",
        "env.json is not a regular file.",
        "result.json cannot be read: Is a directory.",
    )


def test_aliases_cannot_stand_for_more_than_memory_holds(tmp_path: Path) -> None:
    run = FakeRun.begun(tmp_path / "run").folder
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    (run / "config.yaml").write_text("\n".join(lines))
    facts = read_facts(run)
    assert (facts.config, facts.problems) == ({}, ("config.yaml is damaged or half written.",))


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(
            ("logs/rank_4.log", True),
            ("logs/host_a.log", True),
            ("heartbeats/rank_7.json", True),
        ),  # of another host, without a shared file system
        *(("logs/application.log", False), ("checkpoints/format.py", False), ("config.yaml", False)),
    ],
)
def test_what_is_a_run_folder(name: str, is_one: bool, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    assert is_run(tmp_path) == is_one


def test_what_holds_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text(json.dumps({}))
    for name, fact in (("none", "There is no folder"), ("empty", "holds no run"), ("file", "is a file")):
        with pytest.raises(UsageError, match=fact):
            read_facts(tmp_path / name)
