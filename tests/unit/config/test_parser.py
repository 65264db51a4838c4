"""What options and YAML files mean."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.config_samples import COMPANIONS, SAMPLES, parse

from hvdtrain.config.option_help import keys
from hvdtrain.config.parallel_options import ParallelOptions
from hvdtrain.config.train_config import DataConfig, TrainConfig
from hvdtrain.config.yaml_file import dump_config

DEFAULT = TrainConfig()

counts = st.none() | st.integers(1, 10**6)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20).filter(
    lambda text: not text.lstrip().startswith("#")  # a comment for YAML: refused as an option's value
)
NULLS = ("null", "Null", "NULL", "~")
"""As the value of an option that may be left out, these mean that it is; so does "null" on the command line."""
names = texts.filter(lambda text: text.strip() not in NULLS and not text.startswith("~"))
plain = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | texts
arguments = st.dictionaries(
    st.from_regex("[a-z]{1,8}", fullmatch=True), plain | st.lists(plain, max_size=3), max_size=3
)

configs = st.builds(
    TrainConfig,
    task=st.from_regex("[a-z_]{1,9}(:[A-Z][a-z]{1,9})?", fullmatch=True),
    model=st.none() | st.from_regex("[a-z]{1,6}[0-9]{1,3}", fullmatch=True),
    task_args=arguments,
    framework=st.sampled_from(["auto", "torch", "tensorflow"]),
    data=st.builds(
        DataConfig,
        dir=st.none() | names,
        download=st.booleans(),
        check_crc=st.booleans(),
        on_corrupt=st.sampled_from(["raise", "mask", "quarantine"]),
        max_corrupt=st.floats(0, 1),
        shuffle=st.sampled_from(["global", "block"]),
        balance=st.sampled_from(["records", "bytes"]),
        threads=st.integers(1, 9),
        processes=st.integers(0, 9),
        prefetch=st.integers(1, 99),
        timeout=st.floats(1, 1e6),
    ),
    epochs=counts,
    max_steps=counts,
    max_time=st.none() | st.from_regex("([0-9]-)?[0-9]{1,2}:[0-5][0-9]:[0-5][1-9]", fullmatch=True),
    global_batch_size=counts,
    lr=st.none() | st.floats(1e-12, 1e3),
    lr_scaling=st.just("none"),
    reference_batch_size=counts,
    warmup_epochs=st.none() | st.floats(0, 1e3),
    lr_schedule=st.sampled_from(["constant", "cosine"]),
    seed=st.integers(0, 2**32 - 1),
    output_dir=st.none() | names,
    resume=texts,
    keep_checkpoints=st.integers(1, 99),
    checkpoint_interval=st.integers(0, 99),
    log_interval=st.integers(1, 99),
    progress=st.sampled_from(["auto", "bar", "lines", "none"]),
    stall_timeout=st.floats(1, 1e6),
    dry_run=st.booleans(),
    debug=st.booleans(),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


def from_yaml(file: Path, text: str, *argv: str) -> TrainConfig:
    file.write_text(text)
    return parse("--config", str(file), *argv)


@given(config=configs)
@settings(max_examples=60)
def test_a_dumped_config_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, config: TrainConfig) -> None:
    file = tmp_path_factory.mktemp("yaml") / "run.yaml"
    file.write_text(dump_config(config))
    assert parse("--config", str(file)) == config


TRICKY = [
    "1e3",
    "1",
    "0x10",
    "1_000",
    ".5",
    "true",
    "no",
    *NULLS,
    "2020-01-01",
    "12:30",
    "=",
    "!x",
    "- a",
    "{a",
    "",
]


@pytest.mark.parametrize("text", TRICKY)
def test_text_that_looks_like_something_else_stays_text(text: str, file: Path) -> None:
    folder = None if text in NULLS else text
    config = TrainConfig(output_dir=folder, task_args={"a": text, "b": [text], "c": {"d": text}})
    file.write_text(dump_config(config))
    assert parse("--config", str(file)) == config


def test_no_argument_is_the_default() -> None:
    assert parse() == DEFAULT


GROUPED = {"data": DataConfig, "parallel": ParallelOptions}


def all_keys() -> list[str]:
    own = [field.name for field in fields(TrainConfig) if field.name not in GROUPED]
    return own + [f"{name}.{field.name}" for name, kind in GROUPED.items() for field in fields(kind)]


def value_of(config: TrainConfig, key: str) -> Any:
    value: Any = asdict(config)
    for part in key.split("."):
        value = value[part]
    return value


def test_the_samples_cover_every_key_and_each_has_its_help() -> None:
    assert sorted(SAMPLES) == sorted(all_keys()) == sorted(keys())
    assert [key.name for key in keys().values() if not key.about] == []


@pytest.mark.parametrize("key", SAMPLES)
@pytest.mark.parametrize("dash", ["-", "_"])
@pytest.mark.parametrize("joined", [False, True])
def test_every_key_is_a_flag(key: str, dash: str, joined: bool) -> None:
    text, value = SAMPLES[key]
    flag = "--" + key.replace("_", dash)
    config = parse(*([f"{flag}={text}"] if joined else [flag, text]), *COMPANIONS.get(key, ()))
    assert value_of(config, key) == value
    assert type(value_of(config, key)) is type(value)


@pytest.mark.parametrize("key", SAMPLES)
def test_every_key_is_a_yaml_key(key: str, file: Path) -> None:
    text, value = SAMPLES[key]
    *outer, last = key.split(".")
    text = f"[{text}]" if isinstance(value, list) else text
    content = "".join(f"{name}:\n  " for name in outer) + f"{last}: {text}"
    assert value_of(from_yaml(file, content, *COMPANIONS.get(key, ())), key) == value


def test_name_value_pairs_as_sagemaker_passes_them() -> None:
    pairs = ["batch_size", "dry_run", "lr", "data.check_crc", "debug", "epochs"]
    config = parse(*(word for key in pairs for word in (f"--{key}", SAMPLES[key][0])))
    assert [value_of(config, key) for key in pairs] == [SAMPLES[key][1] for key in pairs]


@pytest.mark.parametrize("text", ["True", "true", "yes"])
@pytest.mark.parametrize("flag", ["--dry-run", "--dry_run", "--data.check-crc"])
def test_switches_bare_or_with_a_value(flag: str, text: str) -> None:
    key = flag[2:].replace("-", "_")
    assert value_of(parse(flag), key) is True
    assert value_of(parse(flag, "--epochs", "2"), key) is True
    assert parse(flag, "--epochs", "2").epochs == 2
    assert value_of(parse(flag, text), key) is True
    assert value_of(parse(f"{flag}={text}"), key) is True


@pytest.mark.parametrize("text", ["False", "false", "no"])
def test_switches_off(text: str) -> None:
    assert parse("--dry-run", text) == parse(f"--dry_run={text}") == DEFAULT
    assert not parse("--data.check-crc", text).data.check_crc


@pytest.mark.parametrize(
    "argv", [("--config", "FILE", "--lr", "0.5"), ("--lr", "0.5", "--config", "FILE"), ("--lr=0.5", "--config=FILE")]
)
def test_flags_override_files_wherever_they_stand(file: Path, argv: tuple[str, ...]) -> None:
    file.write_text("lr: 0.1\nseed: 5\ndata: {prefetch: 9}\n")
    config = parse(*(word.replace("FILE", str(file)) for word in argv), "--data.timeout", "7")
    assert (config.lr, config.seed, config.data.prefetch, config.data.timeout) == (0.5, 5, 9, 7.0)


def test_of_two_files_the_later_wins(file: Path, tmp_path: Path) -> None:
    file.write_text("lr: 0.1\nseed: 5\n")
    (tmp_path / "more.yaml").write_text("lr: 0.2\n")
    config = parse("--config", str(file), "--config", str(tmp_path / "more.yaml"))
    assert (config.lr, config.seed) == (0.2, 5)


def test_task_arguments_keep_their_types_and_merge_over_the_file(file: Path) -> None:
    config = from_yaml(
        file, "task_args: {width: 8, name: x, deep: {a: 1}}", "--task-args.width", "16", "--task_args.rate=0.5"
    )
    assert config.task_args == {"width": 16, "name": "x", "deep": {"a": 1}, "rate": 0.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[("16", 16), ("-3", -3), ("0.5", 0.5), ("1e-3", 0.001), ("true", True), ("False", False), ("null", None)],
        *[("abc", "abc"), ("'16'", "16"), ("12:30", "12:30"), ("no", "no"), ("[1, a]", [1, "a"]), ("1.2.3", "1.2.3")],
    ],
)
def test_task_argument_flags_are_read_as_yaml_would_be(text: str, value: Any) -> None:
    for config in (parse("--task-args.a", text), parse(f"--task_args.b.a={text}")):
        arguments_ = config.task_args.get("b", config.task_args)
        assert arguments_ == {"a": value}
        assert type(arguments_["a"]) is type(value)


def test_a_flag_that_looks_like_a_tag_is_text() -> None:
    assert parse("--output-dir", "!!python/name:os.system").output_dir == "!!python/name:os.system"


def test_print_config_prints_what_reads_back(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    argv = ["--lr", "0.25", "--data.prefetch", "9", "--task-args.width", "16", "--dry-run"]
    for flag in ("--print-config", "--print_config"):
        with pytest.raises(SystemExit) as ended:
            parse(*argv, flag)
        assert ended.value.code == 0
        file.write_text(capsys.readouterr().out)
        assert parse("--config", str(file)) == parse(*argv)


def page_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    with pytest.raises(SystemExit) as ended:
        parse(*argv)
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_all_help_names_every_key_once_in_a_named_group_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    text = page_of(capsys, "--help-all")
    for key in SAMPLES:
        flag = "--task-args.NAME" if key == "task_args" else f"--{key.replace('_', '-')}"
        assert len(re.findall(rf"^  {flag}(?: |$)", text, re.MULTILINE)) == 1, flag
    assert {"Task and model:", "Data:", "Optimizer:", "Learning rate:", "Validation and stopping:"} <= set(
        text.splitlines()
    )
    assert "\n  --lr-milestones NUMBER,...    epochs at which step changes the learning rate, e.g. 30,60,80" in text
    assert "\n  --precision {fp32,tf32,bf16,fp16}\n" in text
    for noise in ("Optional", "Literal", "null", "(type:", "None", "True", "left out:"):
        assert noise not in text, noise
    assert max(map(len, text.splitlines())) <= 100
    assert "Exit codes: 0 done" in text


def test_help_is_a_page_with_the_first_flags_and_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    text = page_of(capsys, "--help")
    assert re.findall(r"^  (--[a-z.-]+)", text, re.MULTILINE) == [
        *("--task", "--model", "--data.dir", "--framework", "--epochs"),
        *("--batch-size", "--lr", "--output-dir", "--resume", "--config"),
    ]
    assert "\n  horovodrun -np 8 python -m hvdtrain " in text
    assert re.search(r"^  Validation and stopping +--best-metric", text, re.MULTILINE)
    assert len(text.splitlines()) < 60


def test_print_config_explains_each_key_in_a_comment(capsys: pytest.CaptureFixture[str]) -> None:
    lines = page_of(capsys, "--print-config").splitlines()
    keys = [place for place, line in enumerate(lines) if re.match(r" *[a-z_0-9]+:", line) and line[:-1] not in GROUPED]
    assert len(keys) == len(SAMPLES)
    assert [lines[place] for place in keys if not lines[place - 1].lstrip().startswith("# ")] == []
    assert "# ---- Learning rate ----" in lines


@pytest.mark.parametrize(
    ("argv", "arguments_"),
    [
        (["--task-args.a", "1", "--task-args.a.b", "2"], {"a": {"b": 2}}),
        (["--task-args.a.b", "2", "--task-args.a", "1"], {"a": 1}),
        (["--task-args.a", "x", "--task-args", "{b: 1}"], {"b": 1}),
    ],
)
def test_of_task_arguments_that_exclude_each_other_the_later_wins(argv: list[str], arguments_: dict[str, Any]) -> None:
    assert parse(*argv).task_args == arguments_
