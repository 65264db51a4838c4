"""Flags and YAML: what is understood, what is refused and in which words, and that nothing in them is executed."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hvdtrain.config import DataConfig, TrainConfig
from hvdtrain.config_parser import dump_config, parse_train_config
from hvdtrain.errors import UsageError

DEFAULT = TrainConfig()

counts = st.none() | st.integers(1, 10**6)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=20)
plain = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(-1e6, 1e6) | texts
arguments = st.dictionaries(
    st.from_regex("[a-z]{1,8}", fullmatch=True), plain | st.lists(plain, max_size=3), max_size=3
)

configs = st.builds(
    TrainConfig,
    task=st.from_regex("[a-z_]{1,9}(:[A-Z][a-z]{1,9})?", fullmatch=True),
    task_args=arguments,
    framework=st.sampled_from(["auto", "torch", "tensorflow"]),
    data=st.builds(
        DataConfig,
        dir=st.none() | texts,
        check_crc=st.booleans(),
        prefetch=st.integers(1, 99),
        timeout=st.floats(1, 1e6),
    ),
    epochs=counts,
    max_steps=counts,
    global_batch_size=counts,
    lr=st.none() | st.floats(1e-12, 1e3),
    lr_scaling=st.just("none"),
    reference_batch_size=counts,
    warmup_epochs=st.none() | st.floats(0, 1e3),
    lr_schedule=st.sampled_from(["constant", "cosine"]),
    seed=st.integers(0, 2**63),
    output_dir=st.none() | texts,
    resume=texts,
    keep_checkpoints=st.integers(1, 99),
    checkpoint_interval=st.integers(0, 99),
    log_interval=st.integers(1, 99),
    progress=st.sampled_from(["auto", "bar", "lines", "none"]),
    stall_timeout=st.floats(1, 1e6),
    dry_run=st.booleans(),
    debug=st.booleans(),
)


def parse(*argv: str) -> TrainConfig:
    return parse_train_config(argv)


def refusal(*argv: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        parse(*argv)
    error = caught.value
    assert all(part.strip() for part in (error.fact, error.conflict, error.hint))
    return error


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
    "null",
    "~",
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
    folder = None if text in ("null", "~") else text
    config = TrainConfig(output_dir=folder, task_args={"a": text, "b": [text], "c": {"d": text}})
    file.write_text(dump_config(config))
    assert parse("--config", str(file)) == config


def test_no_argument_is_the_default() -> None:
    assert parse() == DEFAULT


SAMPLES: dict[str, tuple[str, Any]] = {
    "task": ("mine:Task", "mine:Task"),
    "task_args": ('{"width": 16}', {"width": 16}),
    "framework": ("tensorflow", "tensorflow"),
    "data.dir": ("/data", "/data"),
    "data.check_crc": ("False", False),
    "data.prefetch": ("9", 9),
    "data.timeout": ("12.5", 12.5),
    "epochs": ("3", 3),
    "max_steps": ("17", 17),
    "batch_size": ("8", 8),
    "global_batch_size": ("64", 64),
    "lr": ("1e-3", 0.001),
    "lr_scaling": ("none", "none"),
    "reference_batch_size": ("256", 256),
    "warmup_epochs": ("0.5", 0.5),
    "lr_schedule": ("constant", "constant"),
    "seed": ("7", 7),
    "output_dir": ("OUT", "OUT"),
    "resume": ("never", "never"),
    "keep_checkpoints": ("5", 5),
    "checkpoint_interval": ("10", 10),
    "log_interval": ("4", 4),
    "progress": ("lines", "lines"),
    "stall_timeout": ("60", 60.0),
    "dry_run": ("True", True),
    "debug": ("True", True),
}
"""For each key a value as SageMaker would pass it, and what it means."""


def all_keys() -> list[str]:
    own = [field.name for field in fields(TrainConfig) if field.name != "data"]
    return own + [f"data.{field.name}" for field in fields(DataConfig)]


def value_of(config: TrainConfig, key: str) -> Any:
    value: Any = asdict(config)
    for part in key.split("."):
        value = value[part]
    return value


def test_the_samples_cover_every_key() -> None:
    assert sorted(SAMPLES) == sorted(all_keys())


@pytest.mark.parametrize("key", SAMPLES)
@pytest.mark.parametrize("dash", ["-", "_"])
@pytest.mark.parametrize("joined", [False, True])
def test_every_key_is_a_flag(key: str, dash: str, joined: bool) -> None:
    text, value = SAMPLES[key]
    flag = "--" + key.replace("_", dash)
    config = parse(*([f"{flag}={text}"] if joined else [flag, text]))
    assert value_of(config, key) == value
    assert type(value_of(config, key)) is type(value)


@pytest.mark.parametrize("key", SAMPLES)
def test_every_key_is_a_yaml_key(key: str, file: Path) -> None:
    text, value = SAMPLES[key]
    *outer, last = key.split(".")
    assert (
        value_of(from_yaml(file, f"{''.join(f'{name}: {{' for name in outer)}{last}: {text}{'}' * len(outer)}"), key)
        == value
    )


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


UNKNOWN_FLAGS = {
    ("--epoch", "3"): ("--epoch", "'--epochs'"),
    ("--learning-rat", "3"): ("--learning-rat", None),
    ("--batch_sise", "3"): ("--batch-sise", "'--batch-size'"),
    ("--data.dri", "x"): ("--data.dri", "'--data.dir'"),
    ("--data", "x"): ("--data", "'--data.dir'"),
    ("--dryrun",): ("--dryrun", "'--dry-run'"),
    ("--print_shtab", "bash"): ("--print-shtab", None),
}


@pytest.mark.parametrize("argv", UNKNOWN_FLAGS)
def test_an_unknown_flag_names_the_nearest_and_all(argv: tuple[str, ...]) -> None:
    shown, near = UNKNOWN_FLAGS[argv]
    error = refusal(*argv)
    assert error.fact == f"There is no flag {shown}."
    assert near is None or error.hint.startswith(f"did you mean {near}? ")
    assert all(f"--{key.replace('_', '-')}" in error.hint for key in SAMPLES)


UNKNOWN_KEYS = {
    "epoch: 3": ("epoch", "epochs"),
    "data: {dri: x}": ("data.dri", "data.dir"),
    "data: {prefetch: 2, check-crc: true}": ("data.check-crc", "data.check_crc"),
    "lr: 0.1\nwarmup_epoch: 2": ("warmup_epoch", "warmup_epochs"),
    "batch-size: 2": ("batch-size", "batch_size"),
    "config: other.yaml": ("config", None),
    "print_config: true": ("print_config", None),
    "data: 5": ("data", "data.dir"),
    "3: 4": ("3", None),
}


@pytest.mark.parametrize("text", UNKNOWN_KEYS)
def test_an_unknown_key_names_the_file_the_nearest_and_all(text: str, file: Path) -> None:
    name, near = UNKNOWN_KEYS[text]
    file.write_text(text)
    error = refusal("--config", str(file))
    assert error.fact == f"There is no key {name!r} in a config, but {file} has it."
    assert near is None or error.hint.startswith(f"did you mean {near!r}? ")
    assert f"Valid: {', '.join(sorted(SAMPLES))}." in error.hint


WRONG = {
    "epochs": ("1.5", "x", "true"),
    "lr": ("x", "[1]"),
    "seed": ("0.5", "a"),
    "lr_schedule": ("linear",),
    "progress": ("1",),
    "task_args": ("5", "[1]"),
    "data.prefetch": ("many",),
    "data.check_crc": ("maybe",),
}


@pytest.mark.parametrize(("key", "text"), [(key, text) for key, texts_ in WRONG.items() for text in texts_])
@pytest.mark.parametrize("way", ["flag", "file"])
def test_a_value_of_the_wrong_type_names_flag_and_value(key: str, text: str, way: str, file: Path) -> None:
    flag = "--" + key.replace("_", "-")
    if way == "file":
        *outer, last = key.split(".")
        file.write_text(f"{outer[0]}: {{{last}: {text}}}" if outer else f"{last}: {text}")
        error = refusal("--config", str(file))
    else:
        error = refusal(f"{flag}={text}")
    assert error.fact.startswith(f"{flag} is given as ")
    assert yaml.safe_load(text) in (given_value(error.fact), yaml.safe_load(given_value(error.fact)))
    assert error.conflict.startswith("It must be ")
    assert len(error.conflict) > len("It must be .")


def given_value(fact: str) -> str:
    """The value that the message quotes."""
    quoted: str = yaml.safe_load(fact.removesuffix(".").partition(" is given as ")[2])
    return quoted


def test_choices_are_listed() -> None:
    assert refusal("--lr-schedule", "linear").conflict == "It must be constant, cosine."


@pytest.mark.parametrize(
    "argv",
    [
        ("--epochs",),
        ("--config",),
        ("--lr", "0.1", "0.2"),
        ("foo",),
        ("-epochs", "3"),
        ("--dry-run", "maybe"),
        ("--", "x"),
    ],
)
def test_what_cannot_be_understood_is_refused(argv: tuple[str, ...]) -> None:
    assert refusal(*argv).fact.startswith("The command line cannot be understood: ")


def test_checks_of_the_config_itself_reach_flags_and_files(file: Path) -> None:
    assert refusal("--epochs", "0").fact == "--epochs is 0."
    file.write_text("data: {timeout: 0}")
    assert refusal("--config", str(file)).fact == "--data.timeout is 0.0."


@pytest.mark.parametrize(
    "content", [b"- 1", b"", b"5", b"lr: [1", b"a: b: c", b"\xff\xfe", b"\tlr: 1", b"lr: &a 1\nseed: *b"]
)
def test_files_that_are_no_mapping_of_plain_values(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    assert str(file) in refusal("--config", str(file)).fact


@pytest.mark.parametrize("path", ["missing.yaml", "."])
def test_files_that_cannot_be_read(path: str, tmp_path: Path) -> None:
    error = refusal("--config", str(tmp_path / path))
    assert error.fact.startswith(f"The config file {tmp_path / path} cannot be read")


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:os.system",
        "!!python/object/new:os.system",
        "!!python/name:os.system",
        "!!python/object/apply:pathlib.Path.touch",
    ],
)
@pytest.mark.parametrize("key", ["lr", "task_args", "task_args: {a", "unknown"])
def test_yaml_that_would_run_code_is_refused_and_runs_nothing(tag: str, key: str, file: Path, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    closing = "}" if "{" in key else ""
    argument = (
        ""
        if "name:" in tag
        else f'["touch {mark}"]'
        if "system" in tag
        else f'[!!python/object/apply:pathlib.Path ["{mark}"]]'
    )
    file.write_text(f"{key}: {tag} {argument}{closing}")
    assert "is not plain YAML" in refusal("--config", str(file)).fact
    assert not mark.exists()


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


def test_help_names_every_key_and_keeps_the_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert [key for key in SAMPLES if f"  --{key.replace('_', '-')} " not in text] == []
    assert "\n  horovodrun -np 8 python -m hvdtrain " in text
    assert "Exit codes: 0 done" in text


words = st.sampled_from(
    ["--epochs", "--lr", "--dry-run", "--data.dir", "--task-args.a", "--seed=1", "--no", "-x", "--", "="]
)
anything = (
    words | st.text(max_size=6) | st.integers().map(str) | st.sampled_from(["True", "null", "[1", "{a: b}", "-1"])
)


@given(argv=st.lists(anything, max_size=5))
@settings(max_examples=150)
def test_any_command_line_is_a_config_or_a_refusal(argv: list[str]) -> None:
    try:
        config = parse(*argv)
    except UsageError as error:
        assert error.fact.strip()  # noqa: PT017  either outcome is right
    except SystemExit as ended:
        assert ended.code == 0  # noqa: PT017
    else:
        assert isinstance(config, TrainConfig)
        assert isinstance(config.data, DataConfig)
