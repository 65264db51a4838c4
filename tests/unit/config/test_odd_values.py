"""Values that YAML reads otherwise than people mean them, or that no machine can use, are refused with the reason."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.config_samples import parse

from hvdtrain.algorithms.lr_schedule import scaled_lr
from hvdtrain.config.option_help import keys
from hvdtrain.config.parser import parse_train_config, train_config_of
from hvdtrain.config.yaml_file import read_yaml
from hvdtrain.errors import UsageError


@pytest.mark.parametrize("value", ["~", "&a", "# x", "Null", "NULL"])
def test_an_option_that_yaml_reads_as_null_is_refused(value: str) -> None:
    for option in ("--output-dir", "--init-weights", "--best-metric"):
        with pytest.raises(UsageError, match="this is null"):
            parse_train_config([f"{option}={value}"])
        with pytest.raises(UsageError, match="It would be read as null"):
            train_config_of({option[2:].replace("-", "_"): value})
    assert parse_train_config(["--output-dir", "null"]).output_dir is None


@pytest.mark.parametrize("value", ["2026-13-10", "2026-02-30", "0x_", "!!int abc", "[" * 3000, "a # b", "{}", "*x"])
def test_a_folder_may_have_a_name_that_yaml_would_read_otherwise(value: str) -> None:
    assert parse_train_config([f"--output-dir={value}"]).output_dir == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("epochs: 1\nlr: 0.1\nepochs: 2\n", "the key 'epochs' is given twice"),
        ("data:\n  dir: a\n  dir: b\n", "the key 'dir' is given twice"),
        ("task_args: {a: &x [*x]}\n", "is not plain YAML"),
        ("task_args: {1: 2}\n", "task_args has the key 1"),
        ("parallel: auto\n", r"parallel is given as 'auto'.*\n.*write parallel: \{choose: auto\}, or its keys"),
        ("data: 3\n", "data is given as 3 in"),
        ("parallel:\n", r"write parallel: \{choose: auto\}, or its keys below it"),
        ("output_dir: '~'\n", "output_dir is the text '~'"),
        ("checkpoint_every: 600\n", "in YAML in quotes"),
    ],
)
def test_a_file_that_does_not_say_what_is_meant(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(UsageError, match=said):
        parse_train_config(["--config", str(tmp_path / "run.yaml")])


@pytest.mark.parametrize(
    "option",
    [
        *("--compute-threads=1000000", "--data.threads=5000", "--data.timeout=1e10", "--stall-timeout=1e300"),
        *("--lr=1e300", f"--data.timeout={'9' * 400}", f"--data.max-corrupt={'9' * 400}"),
    ],
)
def test_a_number_that_no_machine_can_use(option: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_train_config([option])
    assert caught.value.hint


def test_a_scaled_learning_rate_is_a_number_of_float32() -> None:
    with pytest.raises(UsageError, match=r"1e\+37, scaled to the global batch of 100, is 1e\+39"):
        scaled_lr(1e37, "linear", 100, 1)


def test_a_key_may_stand_once_in_each_mapping_that_another_one_takes_over(tmp_path: Path) -> None:
    text = "root: &root {x: 1}\na: {base: &base {<<: *root, x: 2}}\nchild: {<<: *base, y: 3}\n"
    (tmp_path / "a.yaml").write_text(text)
    assert read_yaml(tmp_path / "a.yaml")["child"] == {"x": 2, "y": 3}


PATHS = ("output_dir", "resume", "init_weights", "data.dir", "data.cache_dir", "data.pipe_dir", "data.pipe_plan")


@pytest.mark.parametrize("name", PATHS)
def test_a_leading_tilde_is_the_home_folder_in_every_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line, in a file (which may itself be named so), and in a call."""
    monkeypatch.setenv("HOME", str(tmp_path))
    outer, _, inner = name.rpartition(".")
    pipe = {"mode": "pipe"} if "pipe" in name else {}
    values: dict[str, Any] = {"data": {**pipe, inner: "~/a/b"}} if outer else {name: "~/a/b"}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    options = ["--data.mode=pipe"] if pipe else []
    for config in (
        parse(*options, f"--{name}", "~/a/b"),
        parse("--config", "~/run.yaml"),
        parse("--config=~/run.yaml"),
        train_config_of(values),
    ):
        assert attrgetter(name)(config) == str(tmp_path / "a" / "b")


def test_these_are_all_paths_and_a_tilde_elsewhere_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert sorted(PATHS) == sorted(key.name for key in keys().values() if key.is_path)
    config = parse("--output-dir", "a/~/b", "--model", "~/m", "--data.dir", "s3://~/d")
    assert (config.output_dir, config.model, config.data.dir) == ("a/~/b", "~/m", "s3://~/d")
